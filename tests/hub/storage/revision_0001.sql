CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE accounts (
    id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    kind VARCHAR(80) NOT NULL,
    is_admin BOOLEAN NOT NULL,
    created_at FLOAT NOT NULL,
    disabled_at FLOAT,
    CONSTRAINT pk_accounts PRIMARY KEY (id),
    CONSTRAINT uq_accounts_name UNIQUE (name)
);
CREATE TABLE memberships (
    owner_id INTEGER NOT NULL,
    user_id INTEGER NOT NULL,
    role INTEGER NOT NULL,
    CONSTRAINT pk_memberships PRIMARY KEY (owner_id, user_id),
    CONSTRAINT fk_memberships_owner_id FOREIGN KEY(owner_id) REFERENCES accounts (id),
    CONSTRAINT fk_memberships_user_id FOREIGN KEY(user_id) REFERENCES accounts (id)
);
CREATE INDEX ix_memberships_user_id ON memberships (user_id);
CREATE TABLE tokens (
    id VARCHAR(40) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    user_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    scope INTEGER NOT NULL,
    kind VARCHAR(80) NOT NULL,
    parent_id VARCHAR(40),
    created_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL,
    last_used_at FLOAT,
    revoked_at FLOAT,
    CONSTRAINT pk_tokens PRIMARY KEY (id),
    CONSTRAINT fk_tokens_user_id FOREIGN KEY(user_id) REFERENCES accounts (id),
    CONSTRAINT uq_tokens_digest UNIQUE (digest)
);
CREATE INDEX ix_tokens_parent_id ON tokens (parent_id);
CREATE INDEX ix_tokens_user_id ON tokens (user_id);
CREATE TABLE device_codes (
    digest VARCHAR(64) NOT NULL,
    user_code VARCHAR(16) NOT NULL,
    client TEXT NOT NULL,
    scope INTEGER NOT NULL,
    state VARCHAR(80) NOT NULL,
    user_id INTEGER,
    expires_at FLOAT NOT NULL,
    polled_at FLOAT,
    CONSTRAINT pk_device_codes PRIMARY KEY (digest),
    CONSTRAINT fk_device_codes_user_id FOREIGN KEY(user_id) REFERENCES accounts (id),
    CONSTRAINT uq_device_codes_user_code UNIQUE (user_code)
);
CREATE TABLE audit (
    number INTEGER NOT NULL,
    at FLOAT NOT NULL,
    actor VARCHAR(80) NOT NULL,
    owner VARCHAR(80) NOT NULL,
    action VARCHAR(80) NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    previous VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL,
    CONSTRAINT pk_audit PRIMARY KEY (number)
);
CREATE INDEX ix_audit_owner ON audit (owner);
CREATE TABLE state (
    id INTEGER NOT NULL,
    audit_number INTEGER NOT NULL,
    audit_hash VARCHAR(64) NOT NULL,
    key_proof BLOB,
    CONSTRAINT pk_state PRIMARY KEY (id)
);
CREATE TABLE environments (
    id INTEGER NOT NULL,
    owner_id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    visibility VARCHAR(80) NOT NULL,
    summary TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    updated_at FLOAT NOT NULL,
    deleted_at FLOAT,
    CONSTRAINT pk_environments PRIMARY KEY (id),
    CONSTRAINT fk_environments_owner_id FOREIGN KEY(owner_id) REFERENCES accounts (id),
    CONSTRAINT uq_environments_owner_id UNIQUE (owner_id, name)
);
CREATE INDEX ix_environments_name ON environments (name);
CREATE TABLE secrets (
    environment_id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    value BLOB NOT NULL,
    updated_at FLOAT NOT NULL,
    CONSTRAINT pk_secrets PRIMARY KEY (environment_id, name),
    CONSTRAINT fk_secrets_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
);
CREATE TABLE variables (
    environment_id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    value TEXT NOT NULL,
    updated_at FLOAT NOT NULL,
    CONSTRAINT pk_variables PRIMARY KEY (environment_id, name),
    CONSTRAINT fk_variables_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id)
);
CREATE TABLE versions (
    id INTEGER NOT NULL,
    environment_id INTEGER NOT NULL,
    version VARCHAR(80) NOT NULL,
    summary TEXT NOT NULL,
    readme TEXT NOT NULL,
    readme_type VARCHAR(80) NOT NULL,
    requires_python TEXT NOT NULL,
    requires_dist JSON NOT NULL,
    core_metadata BLOB NOT NULL,
    pushed_by VARCHAR(80) NOT NULL,
    created_at FLOAT NOT NULL,
    yanked_at FLOAT,
    yanked_reason TEXT NOT NULL,
    deleted_at FLOAT,
    downloads INTEGER NOT NULL,
    CONSTRAINT pk_versions PRIMARY KEY (id),
    CONSTRAINT fk_versions_environment_id FOREIGN KEY(environment_id) REFERENCES environments (id),
    CONSTRAINT uq_versions_environment_id UNIQUE (environment_id, version)
);
CREATE INDEX ix_versions_alive ON versions (environment_id, deleted_at);
CREATE TABLE files (
    id INTEGER NOT NULL,
    version_id INTEGER NOT NULL,
    kind VARCHAR(80) NOT NULL,
    filename TEXT NOT NULL,
    size INTEGER NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    CONSTRAINT pk_files PRIMARY KEY (id),
    CONSTRAINT fk_files_version_id FOREIGN KEY(version_id) REFERENCES versions (id),
    CONSTRAINT uq_files_version_id UNIQUE (version_id, kind)
);
CREATE INDEX ix_files_sha256 ON files (sha256);
CREATE TABLE actions (
    id VARCHAR(40) NOT NULL,
    version_id INTEGER NOT NULL,
    state VARCHAR(20) NOT NULL,
    attempt INTEGER NOT NULL,
    claimed_by VARCHAR(40),
    summary TEXT NOT NULL,
    log TEXT NOT NULL,
    queued_at FLOAT NOT NULL,
    started_at FLOAT,
    finished_at FLOAT,
    CONSTRAINT pk_actions PRIMARY KEY (id),
    CONSTRAINT fk_actions_version_id FOREIGN KEY(version_id) REFERENCES versions (id)
);
CREATE INDEX ix_actions_state ON actions (state);
CREATE INDEX ix_actions_version_id ON actions (version_id);
CREATE TABLE pushes (
    id VARCHAR(40) NOT NULL,
    user_id INTEGER NOT NULL,
    owner_id INTEGER NOT NULL,
    name VARCHAR(80) NOT NULL,
    version VARCHAR(80) NOT NULL,
    visibility VARCHAR(10),
    state VARCHAR(20) NOT NULL,
    expected JSON NOT NULL,
    findings JSON NOT NULL,
    created_at FLOAT NOT NULL,
    expires_at FLOAT NOT NULL,
    CONSTRAINT pk_pushes PRIMARY KEY (id),
    CONSTRAINT fk_pushes_owner_id FOREIGN KEY(owner_id) REFERENCES accounts (id),
    CONSTRAINT fk_pushes_user_id FOREIGN KEY(user_id) REFERENCES accounts (id)
);
CREATE INDEX ix_pushes_state ON pushes (state);
CREATE INDEX ix_pushes_user_id ON pushes (user_id);
INSERT INTO alembic_version VALUES ('0001');
INSERT INTO state (id, audit_number, audit_hash) VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');

CREATE TABLE service_alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT service_alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE runs (
    id VARCHAR(40) NOT NULL,
    "key" VARCHAR(40) NOT NULL,
    owner VARCHAR(80) NOT NULL,
    "user" VARCHAR(80) NOT NULL,
    name TEXT NOT NULL,
    kind VARCHAR(80) NOT NULL,
    model TEXT NOT NULL,
    config TEXT NOT NULL,
    files JSON NOT NULL,
    environments JSON NOT NULL,
    labels JSON NOT NULL,
    needs JSON NOT NULL,
    caps JSON NOT NULL,
    priority INTEGER NOT NULL,
    state VARCHAR(20) NOT NULL,
    reason TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    resume BOOLEAN NOT NULL,
    resume_step INTEGER,
    stop_requested_at FLOAT,
    submitted_at FLOAT NOT NULL,
    queued_at FLOAT NOT NULL,
    started_at FLOAT,
    ended_at FLOAT,
    deleted_at FLOAT,
    step INTEGER NOT NULL,
    max_steps INTEGER,
    skip_action_check BOOLEAN NOT NULL,
    seconds FLOAT NOT NULL,
    tokens BIGINT NOT NULL,
    cost FLOAT NOT NULL,
    CONSTRAINT pk_runs PRIMARY KEY (id),
    CONSTRAINT uq_runs_user UNIQUE ("user", "key")
);
CREATE INDEX ix_runs_owner ON runs (owner);
CREATE INDEX ix_runs_queue ON runs (state, queued_at);
CREATE INDEX ix_runs_state ON runs (state);
CREATE TABLE attempts (
    run_id VARCHAR(40) NOT NULL,
    number INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    runner_id VARCHAR(40) NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER,
    process_began TEXT,
    state VARCHAR(20) NOT NULL,
    lease_until FLOAT NOT NULL,
    started_at FLOAT NOT NULL,
    ended_at FLOAT,
    exit_code INTEGER,
    outcome TEXT NOT NULL,
    charged_until FLOAT NOT NULL,
    CONSTRAINT pk_attempts PRIMARY KEY (run_id, number),
    CONSTRAINT fk_attempts_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_attempts_runner_id ON attempts (runner_id);
CREATE INDEX ix_attempts_state ON attempts (state);
CREATE TABLE run_secrets (
    run_id VARCHAR(40) NOT NULL,
    name VARCHAR(80) NOT NULL,
    value BLOB NOT NULL,
    key_id VARCHAR(16) NOT NULL,
    CONSTRAINT pk_run_secrets PRIMARY KEY (run_id, name),
    CONSTRAINT fk_run_secrets_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE TABLE blobs (
    "user" VARCHAR(80) NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    size BIGINT NOT NULL,
    uploaded_at FLOAT NOT NULL,
    CONSTRAINT pk_blobs PRIMARY KEY ("user", sha256)
);
CREATE INDEX ix_blobs_sha256 ON blobs (sha256);
CREATE TABLE runners (
    id VARCHAR(40) NOT NULL,
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_began TEXT,
    version TEXT NOT NULL,
    capacity JSON NOT NULL,
    started_at FLOAT NOT NULL,
    heartbeat_at FLOAT NOT NULL,
    ended_at FLOAT,
    CONSTRAINT pk_runners PRIMARY KEY (id)
);
CREATE INDEX ix_runners_heartbeat_at ON runners (heartbeat_at);
CREATE TABLE owner_secrets (
    owner VARCHAR(80) NOT NULL,
    name VARCHAR(80) NOT NULL,
    value BLOB NOT NULL,
    key_id VARCHAR(16) NOT NULL,
    updated_at FLOAT NOT NULL,
    CONSTRAINT pk_owner_secrets PRIMARY KEY (owner, name)
);
CREATE TABLE quotas (
    owner VARCHAR(80) NOT NULL,
    running INTEGER,
    queued INTEGER,
    seconds FLOAT,
    cost FLOAT,
    decayed FLOAT NOT NULL,
    decayed_at FLOAT NOT NULL,
    CONSTRAINT pk_quotas PRIMARY KEY (owner)
);
CREATE TABLE usage_days (
    owner VARCHAR(80) NOT NULL,
    day VARCHAR(10) NOT NULL,
    core_seconds FLOAT NOT NULL,
    device_seconds FLOAT NOT NULL,
    run_seconds FLOAT NOT NULL,
    tokens BIGINT NOT NULL,
    cost FLOAT NOT NULL,
    requests INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    CONSTRAINT pk_usage_days PRIMARY KEY (owner, day)
);
CREATE TABLE deployments (
    id VARCHAR(40) NOT NULL,
    owner VARCHAR(80) NOT NULL,
    "user" VARCHAR(80) NOT NULL,
    run_id VARCHAR(40) NOT NULL,
    step INTEGER NOT NULL,
    base TEXT NOT NULL,
    name VARCHAR(80) NOT NULL,
    adapter BOOLEAN NOT NULL,
    state VARCHAR(20) NOT NULL,
    reason TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    deleted_at FLOAT,
    last_used_at FLOAT,
    requests INTEGER NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    CONSTRAINT pk_deployments PRIMARY KEY (id),
    CONSTRAINT fk_deployments_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
CREATE INDEX ix_deployments_owner ON deployments (owner);
CREATE INDEX ix_deployments_run_id ON deployments (run_id);
CREATE INDEX ix_deployments_state ON deployments (state);
CREATE TABLE webhooks (
    id VARCHAR(40) NOT NULL,
    owner VARCHAR(80) NOT NULL,
    "user" VARCHAR(80) NOT NULL,
    url TEXT NOT NULL,
    events JSON NOT NULL,
    secret BLOB NOT NULL,
    key_id VARCHAR(16) NOT NULL,
    created_at FLOAT NOT NULL,
    deleted_at FLOAT,
    CONSTRAINT pk_webhooks PRIMARY KEY (id)
);
CREATE INDEX ix_webhooks_owner ON webhooks (owner);
CREATE TABLE deliveries (
    id VARCHAR(40) NOT NULL,
    webhook_id VARCHAR(40) NOT NULL,
    event VARCHAR(80) NOT NULL,
    body TEXT NOT NULL,
    state VARCHAR(20) NOT NULL,
    attempts INTEGER NOT NULL,
    next_at FLOAT NOT NULL,
    answer TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    CONSTRAINT pk_deliveries PRIMARY KEY (id),
    CONSTRAINT fk_deliveries_webhook_id FOREIGN KEY(webhook_id) REFERENCES webhooks (id)
);
CREATE INDEX ix_deliveries_next_at ON deliveries (next_at);
CREATE INDEX ix_deliveries_state ON deliveries (state);
CREATE INDEX ix_deliveries_webhook_id ON deliveries (webhook_id);
INSERT INTO service_alembic_version VALUES ('0001');

"""Run by the Python of `.venv-bfcl`: reads lines `[category, functions, calls, answers]`, says which are valid."""

import json
import sys

from bfcl_eval.constants.enums import Language
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

model = next(name for name, config in MODEL_CONFIG_MAPPING.items() if config.underscore_to_dot and "_" not in name)
for line in sys.stdin:
    category, functions, calls, answers = json.loads(line)
    verdict = ast_checker(functions, calls, answers, Language.PYTHON, category, model)
    print(json.dumps(verdict["valid"]))

"""Send nothing about the user: turn off the telemetry of libraries, unless the user has decided.

Each library reads its variable when it is imported, so `cotrain/__init__.py` imports this file first. Processes that
cotrain starts inherit the variables.
"""

import os

SETTINGS = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime; from 1.29 on, it also writes a device id below the user's cache
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub, hf-xet, transformers and timm
}

for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)

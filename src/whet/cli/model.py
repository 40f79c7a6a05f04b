"""`whet model`: the models on this machine, getting and converting them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whet.cli.output import JsonOption, extra, print_result
from whet.inference.model_names import MODEL_HELP

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def list_models(json_output: JsonOption = False) -> None:
    """List the models that are on this machine by name: whet's own, those of packages, and what the caches hold.

    \b
    Examples:
      whet model list
    """
    with extra("train", "listing models"):
        from whet.models.local_models import local_models

        rows = local_models()
    print_result({"models": rows}, json_output)


@app.command("get")
def get(
    model: Annotated[str, typer.Argument(help="A name of `whet model list`, a .gguf file, or a Hugging Face id.")],
    json_output: JsonOption = False,
) -> None:
    """Bring a model onto this machine, ready to be evaluated and trained.

    \b
    Examples:
      whet model get smollm2-135m
      whet model get Qwen/Qwen3-0.6B
    """
    with extra("train", "getting a model"):
        from whet.models.local_models import describe, get_model

        description = describe(get_model(model))
    print_result(description | {"model": model}, json_output)


@app.command("convert")
def convert(
    model: Annotated[str, typer.Argument(help="A .gguf file, a directory, an adapter, or another name of a model.")],
    to: Annotated[Path, typer.Argument(help="Directory for safetensors, or a file that ends in .gguf.")],
    dtype: Annotated[
        str | None,
        typer.Option(help="float32 (default), bfloat16 or float16; a GGUF file has float16, of an adapter float32."),
    ] = None,
    metadata_from: Annotated[
        Path | None, typer.Option(help="GGUF file with the model's tokenizer; default: the one it was read from.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Write a model in another format: safetensors for `transformers` and vLLM, GGUF for llama.cpp and Ollama.

    \b
    Examples:
      whet model convert Qwen3-0.6B-Q8_0.gguf qwen3 --dtype bfloat16
      whet model convert runs/sort/model sort.gguf --metadata-from SmolLM2-135M-Instruct.Q4_1.gguf
    """
    with extra("train", "converting a model"):
        from whet.models.local_models import convert_model

        written = convert_model(model, to, dtype=dtype, metadata_from=metadata_from)
    print_result({"model": model, "saved": str(written)}, json_output)


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "whet/tiny",
    json_output: JsonOption = False,
) -> None:
    """Describe a model: architecture, size, tokenizer, and its card where it has one.

    \b
    Examples:
      whet model show
      whet model show runs/quickstart/model --json
    """
    with extra("train", "describing a model"):
        from whet.models.local_models import describe

        description = describe(model)
    print_result(description, json_output)

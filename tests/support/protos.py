"""Classes of Protobuf messages from the text of a .proto file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from grpc_tools import protoc


def message_classes(folder: Path, text: str) -> dict[str, type[Any]]:
    """Return the classes by their full names; ``folder`` gets the file and its descriptors."""
    (folder / "some.proto").write_text(text)
    included = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"-I{folder}",
        f"-I{included}",
        "--include_imports",
        f"--descriptor_set_out={folder}/some.desc",
    ]
    assert protoc.main([*arguments, "some.proto"]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString((folder / "some.desc").read_bytes())
    classes: dict[str, type[Any]] = message_factory.GetMessages(files.file)
    return classes

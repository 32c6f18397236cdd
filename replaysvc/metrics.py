class Metrics:
    def __init__(self, *_: object) -> None: ...

    def render(self) -> tuple[bytes, str]:
        return b"", "text/plain"

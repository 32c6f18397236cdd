"""`replaysvc token`: the secret on stdout, its hash in the file."""

from replaysvc.access import Access, Identity, Role


def test_command_makes_tokens(tmp_path, replaysvc, refused):
    file = tmp_path / "tokens.toml"
    done = replaysvc("token", "a", "--role", "writer")
    secret, _, lines = done.stdout.partition("\n\n")
    assert (done.returncode, done.stderr) == (0, "")
    file.write_text(lines)
    file.chmod(0o600)
    assert Access(file).identify(secret) == Identity("a", Role.WRITER)
    done = replaysvc("token", "b", "--role", "admin", "--file", file)
    (other,) = done.stdout.splitlines()
    known = Access(file)
    assert (known.identify(secret).name, known.identify(other)) == ("a", Identity("b", Role.ADMIN))
    status, sentence = refused("token", "a/b", "--role", "admin")
    assert (status, sentence.partition(",")[0]) == (2, "name: expected 1 to 64 letters")
    before = file.read_text()
    file.chmod(0o666)
    assert refused("token", "c", "--role", "admin", "--file", file)[0] == 2
    assert file.read_text() == before
    assert replaysvc("token", "c", "--role", "root").returncode == 2

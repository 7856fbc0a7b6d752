"""A service started and stopped from a shell: `start FOLDER` prints what tests are told, to be read by the shell."""
import sys


def main(service, shown=dict):
    """`service`: a module with start, stop and Missing. `shown` makes the variables printed of those that start returns."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop"):
        sys.exit(service.__doc__)
    if sys.argv[1] == "stop":
        service.stop(sys.argv[2])
        return
    try:
        values = service.start(sys.argv[2])
    except service.Missing as missing:
        sys.exit(f"{service.__file__}: {missing}")
    except Exception:
        service.stop(sys.argv[2])
        raise
    for name, value in shown(values).items():
        print(f"export {name}={value}")

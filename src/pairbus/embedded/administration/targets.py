"""What a request's path names.

Clients write an entity's slashes as they are or as %2F; both mean the same. `Subscriptions` and `Rules` are
recognised in any case. A name that is not one of these shapes is a queue or a topic.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from pairbus.embedded.errors import EntityNotFoundError, InvalidError

MAX_PATH_LENGTH = 1_024


class Kind(Enum):
    NAMESPACE = "namespace"
    QUEUES = "queues"
    TOPICS = "topics"
    ENTITY = "entity"
    SUBSCRIPTIONS = "subscriptions"
    SUBSCRIPTION = "subscription"
    RULES = "rules"
    RULE = "rule"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Target:
    kind: Kind
    path: str
    """The whole path, decoded, without slashes around it."""
    entity: str = ""
    subscription: str = ""
    rule: str = ""


def parse_target(raw_path: str) -> Target:
    """The target of a raw request path (without its query)."""
    if len(raw_path) > MAX_PATH_LENGTH:
        raise InvalidError(f"The path has {len(raw_path)} characters: at most {MAX_PATH_LENGTH} are allowed.")
    path = unquote(raw_path, errors="replace").strip("/")
    if not path:
        raise InvalidError("The path names no entity: put the entity's name behind the host.")
    segments = path.split("/")
    words = [segment.lower() for segment in segments]
    match words:
        case ["$namespaceinfo"]:
            return Target(Kind.NAMESPACE, path)
        case ["$resources", "queues"]:
            return Target(Kind.QUEUES, path)
        case ["$resources", "topics"]:
            return Target(Kind.TOPICS, path)
        case ["$pairbus", *_]:
            return Target(Kind.CONTROL, path)
        case [word, *_] if word.startswith("$"):
            raise EntityNotFoundError(f"'{path}' is not a resource of this namespace.")
        case [_, *_, "subscriptions"]:
            return Target(Kind.SUBSCRIPTIONS, path, "/".join(segments[:-1]))
        case [_, *_, "subscriptions", _]:
            return Target(Kind.SUBSCRIPTION, path, "/".join(segments[:-2]), segments[-1])
        case [_, *_, "subscriptions", _, "rules"]:
            return Target(Kind.RULES, path, "/".join(segments[:-3]), segments[-2])
        case [_, *_, "subscriptions", _, "rules", _]:
            return Target(Kind.RULE, path, "/".join(segments[:-4]), segments[-3], segments[-1])
    return Target(Kind.ENTITY, path, path)

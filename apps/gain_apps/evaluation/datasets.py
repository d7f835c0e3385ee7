"""Opening a data set of images, whatever it is: folders, corrupted trees, `test://` sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from gain_apps.evaluation.features import code_hash, default_cache_dir
from gain_apps.evaluation.image_data import (
    WNID,
    ClassNames,
    Image,
    ImageData,
    Member,
    check_labels,
    clean_data,
    dataset_files,
    files_fingerprint,
    image_files,
    open_arrays,
    open_dataset,
    open_tar,
    read_tars,
    tar_files,
)
from gain_core import __version__
from gain_core.errors import ArtifactError, ConfigError, StreamError
from gain_runtime.files.images import CLASS_FILE, IMAGE_SUFFIXES, load_image
from gain_runtime.files.paths import exists, is_file, is_folder, write_atomically
from gain_runtime.frames import Frame
from gain_runtime.sources.opening import open_source
from gain_scenes import corruptions, roadsigns
from gain_scenes.corruptions import CORRUPTIONS
from gain_scenes.sources import app_schemes

# The order in which ImageNet-3DCC's domains are streamed.
DOMAINS_3DCC = (
    "near_focus",
    "far_focus",
    "color_quant",
    "iso_noise",
    "low_light",
    "flash",
    "fog_3d",
    "bit_error",
    "h265_abr",
    "h265_crf",
    "xy_motion_blur",
    "z_motion_blur",
)
SEVERITIES = ("1", "2", "3", "4", "5")
SHOWN = 3


def open_data(
    location: str,
    labels: Sequence[str],
    /,
    *,
    domains: Sequence[str] | None = None,
    severities: Sequence[float] = (5.0,),
    class_file: Path | None = None,
    image_list: Path | None = None,
    cache: Path | None = None,
) -> ImageData:
    """Open a data set by its path, telling its layout by what lies there.

    The location is a folder, a tar file or folder of tar files, a data set of the library
    `datasets`, an `.npz` file or a `test://` URI. The labels are the artifact's K. Of a tree, the
    domains are ImageNet-C's fifteen or 3DCC's twelve by default, in their usual order, whichever it
    has one of, and the severities whole numbers from 1 to 5; all of them must be there. An image
    list has `CLASS/FILE`, one a line, in the order of the stream; what follows a space or a comma
    is ignored; by default the images are the files of the first domain, sorted. A class file is a
    `classes.tsv` with WordNet ids. The cache is a folder, by default in the user's.

    Raises `ArtifactError` if nothing is there, or it is damaged, incomplete or of no known layout,
    and `ConfigError` or `StreamError` as the openers.
    """
    root = Path(location)
    tars = [] if "://" in location else tar_files(root)
    members = read_tars(tars)
    packed = TarTree(root, members)
    # A tree is a folder whose subfolders have severities as theirs.
    folders = _folders(root) if is_folder(root) else []
    is_tree = any(is_folder(folder / level) for folder in folders for level in SEVERITIES)
    is_corrupted = bool(packed.domains()) or is_tree
    if image_list is not None and not is_corrupted:
        raise ConfigError("--image-list: for ImageNet-C and ImageNet-3DCC trees only")
    if location.startswith("test://"):
        folder = cache or default_cache_dir()
        return open_test_source(location, num_classes=len(labels), cache=folder)
    if is_file(root) and root.suffix == ".npz":
        return open_arrays(root, num_classes=len(labels))
    if not is_folder(root) and not tars:
        raise ArtifactError(
            f"{location}: expected a folder, a .tar or .npz file or test://NAME, "
            + ("got another file" if exists(root) else "found nothing there")
        )
    names = ClassNames(labels, root=root, class_file=class_file)
    if is_corrupted:
        tree = packed if tars else FolderTree(root)
        return _open_tree(
            tree, names, domains=domains, severities=severities, image_list=image_list
        )
    if tars:
        return open_tar(root, members, names, num_classes=len(labels))
    if files := dataset_files(root):
        return open_dataset(root, files, num_classes=len(labels))
    if folders and not image_files(root):
        return _open_image_folder(root, folders, names)
    return _open_flat_folder(root, names)


def _open_image_folder(root: Path, folders: list[Path], names: ClassNames, /) -> ImageData:
    """Images in one folder per class (ImageFolder, ImageNet-R, V2, Sketch)."""
    files = {folder: image_files(folder) for folder in folders}
    empty = [folder.name for folder, found in files.items() if not found]
    if empty:
        raise ArtifactError(
            f"{root}: expected images in every class folder, found none in {len(empty)} of "
            f"{len(folders)}, {empty[0]} the first; for one of several data sets name its folder"
        )
    indices = names.indices([folder.name for folder in folders], where=str(root))
    paths = [path for folder in folders for path in files[folder]]
    labels = [indices[folder.name] for folder in folders for _ in files[folder]]
    return _clean_files(root, paths, labels, kind="folders")


def _open_flat_folder(root: Path, names: ClassNames, /) -> ImageData:
    """Images named `WNID_anything.jpg` in one folder."""
    paths = image_files(root)
    wnids = [path.name.partition("_")[0] for path in paths]
    strange = [path.name for path, wnid in zip(paths, wnids, strict=True) if not WNID.match(wnid)]
    if strange or not paths:
        raise ArtifactError(
            f"{root}: expected class folders, or images named WNID_*.jpg beside a {CLASS_FILE}, "
            + (f"got {strange[0]}" if strange else "found neither")
        )
    indices = names.indices(sorted(set(wnids)), where=str(root))
    return _clean_files(root, paths, [indices[wnid] for wnid in wnids], kind="flat folder")


def _clean_files(root: Path, paths: list[Path], labels: list[int], *, kind: str) -> ImageData:
    """Files as data."""
    return clean_data(
        kind,
        root,
        labels,
        lambda index: load_image(paths[index]),
        fingerprint=files_fingerprint(root, paths),
    )


class FolderTree:
    """Corrupted images by cell, `DOMAIN/SEVERITY`, and within it by `CLASS/FILE`, as files."""

    def __init__(self, root: Path, /) -> None:
        self.root = root

    def domains(self) -> list[str]:
        return [folder.name for folder in _folders(self.root)]

    def images(self, cell: str, /) -> list[str] | None:
        """Sorted; None where there is no such cell."""
        folder = self.root / cell
        if not is_folder(folder):
            return None
        return [
            f"{each.name}/{path.name}" for each in _folders(folder) for path in image_files(each)
        ]

    def load(self, cell: str, image: str, /) -> Image:
        return load_image(self.root / cell / image)

    def fingerprint(self, cell: str, images: Sequence[str], /) -> str:
        return files_fingerprint(self.root, [self.root / cell / image for image in images])


class TarTree:
    """The same in the archives it is published in."""

    def __init__(self, root: Path, members: Sequence[Member], /) -> None:
        self.root = root
        self._cells: dict[str, dict[str, Member]] = {}
        for member in members:
            *_, domain, level, folder, name = ("", "", "", "", *member.name.split("/"))
            if level in SEVERITIES and domain and Path(name).suffix.lower() in IMAGE_SUFFIXES:
                self._cells.setdefault(f"{domain}/{level}", {})[f"{folder}/{name}"] = member

    def domains(self) -> list[str]:
        return sorted({cell.partition("/")[0] for cell in self._cells})

    def images(self, cell: str, /) -> list[str] | None:
        return sorted(self._cells[cell]) if cell in self._cells else None

    def load(self, cell: str, image: str, /) -> Image:
        return self._cells[cell][image].image()

    def fingerprint(self, cell: str, images: Sequence[str], /) -> str:
        paths = {self._cells[cell][image].path for image in images}
        return files_fingerprint(self.root.parent, sorted(paths))


Tree = FolderTree | TarTree


def _open_tree(
    tree: Tree,
    names: ClassNames,
    /,
    *,
    domains: Sequence[str] | None,
    severities: Sequence[float],
    image_list: Path | None,
) -> ImageData:
    """A tree of corrupted images."""
    wanted = tuple(domains) if domains is not None else _usual_domains(tree)
    levels = [_level(severity) for severity in severities]
    cells = {f"{domain}/{level}": None for domain in wanted for level in levels}
    present = {cell: tree.images(cell) for cell in cells}
    missing = [cell for cell, found in present.items() if found is None]
    if missing:
        raise ArtifactError(
            f"{tree.root}: {len(missing)} of {len(cells)} folders missing: {', '.join(missing)}; "
            "extract them, or choose with --domains and --severity"
        )
    found = {cell: images or [] for cell, images in present.items()}
    first = next(iter(found))
    images = _listed(image_list) if image_list is not None else found[first]
    if not images:
        raise ArtifactError(f"{tree.root}/{first}: expected CLASS/FILE images, found none")
    _check_cells(tree.root, found, images)
    classes = [PurePosixPath(name).parent.name for name in images]
    indices = names.indices(sorted(set(classes)), where=str(tree.root))

    def load(index: int, domain: str, severity: float) -> Image:
        return tree.load(f"{domain}/{_level(severity)}", images[index])

    def fingerprint(domain: str, severity: float) -> str:
        return tree.fingerprint(f"{domain}/{_level(severity)}", images)

    return ImageData(
        kind="tree",
        path=str(tree.root),
        labels=np.asarray([indices[name] for name in classes], dtype=np.int64),
        load=load,
        fingerprint=fingerprint,
        domains=wanted,
        default_order="list" if image_list is not None else "shuffled",
    )


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if is_folder(path) and path.name[0] != ".")


def _usual_domains(tree: Tree) -> tuple[str, ...]:
    """The set of domains the tree seems to be meant for."""
    present = set(tree.domains())
    for usual in (CORRUPTIONS, DOMAINS_3DCC):
        if present & set(usual):
            return tuple(usual)
    return tuple(sorted(present))


def _level(severity: float) -> str:
    """Folder name of a severity."""
    level = f"{severity:g}"
    if level not in SEVERITIES:
        raise ConfigError(f"severity: a tree has {', '.join(SEVERITIES)}, got {level}")
    return level


def _listed(path: Path) -> list[str]:
    """`CLASS/FILE` entries of an image list."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ArtifactError(f"{path}: image list cannot be read ({err}); check the path") from err
    images = [line.replace(",", " ").split()[0] for line in lines if line.strip(" ,\t")]
    bad = [name for name in images if len(PurePosixPath(name).parts) != 2 or ".." in name]
    if bad or not images:
        raise ArtifactError(
            f"{path}: expected CLASS/FILE on every line, "
            + (f"got {bad[0]!r}" if bad else "got an empty list")
        )
    return images


def _check_cells(root: Path, found: Mapping[str, Sequence[str]], images: Sequence[str]) -> None:
    """Every image is there in every domain and severity."""
    faults = []
    for cell, there in found.items():
        present = set(there)
        absent = [name for name in images if name not in present]
        if absent:
            faults.append(f"{cell} lacks {len(absent)} of {len(images)} images, first {absent[0]}")
    if faults:
        shown = "; ".join(faults[:SHOWN])
        more = f"; and {len(faults) - SHOWN} more folders" if len(faults) > SHOWN else ""
        raise ArtifactError(f"{root}: {shown}{more}; extract the missing files")


# The condition of frames that have none.
UNNAMED = "recorded"


def open_test_source(uri: str, /, *, num_classes: int, cache: Path) -> ImageData:
    """All frames of a `test://` source, each cut to its region; `recorded` holds their conditions.

    Drawing thousands of frames takes minutes: labels and conditions are kept in the cache beside
    the features, and the frames are drawn only where an image is asked for.

    Raises `ConfigError` or `StreamError` as `open_source`, also if a frame has no truth, and
    `ArtifactError` if a truth is none of the artifact's K classes, or the cache is damaged or
    cannot be written.
    """
    drawn_by = f"{__version__}\0{code_hash(corruptions, roadsigns)}"
    key = hashlib.sha256(f"{uri}\0{drawn_by}".encode()).hexdigest()
    facts = cache / f"{key[:32]}.recording.json"
    drawn: list[Image] = []
    if is_file(facts):
        labels, conditions = _read_facts(facts)
    else:
        drawn, labels, conditions = _draw(uri)
        text = json.dumps({"labels": labels, "conditions": conditions})
        try:
            cache.mkdir(parents=True, exist_ok=True)
            write_atomically(facts, text.encode())
        except OSError as err:
            raise ArtifactError(
                f"{facts}: cannot be written ({err.strerror}); choose another folder with --cache"
            ) from err
    truths = np.asarray(labels, dtype=np.int64)
    check_labels(truths, num_classes, where=uri)

    def load(index: int) -> Image:
        if not drawn:
            drawn.extend(_draw(uri)[0])
        return drawn[index]

    recorded = tuple(conditions)
    return clean_data("test source", uri, truths, load, fingerprint=key, recorded=recorded)


def _draw(uri: str) -> tuple[list[Image], list[int], list[str]]:
    """Every frame's image, label and condition."""
    images: list[Image] = []
    labels: list[int] = []
    conditions: list[str] = []
    with open_source(uri, schemes=app_schemes()) as source:
        if source.info.num_frames is None:
            raise ConfigError(f"{uri}: expected a source of known length; add ?frames=N")
        for frame in source:
            if frame.truth is None:
                raise ConfigError(f"{uri}: frame {frame.index} has no truth to score against")
            images.append(_region(frame))
            labels.append(frame.truth)
            conditions.append(frame.condition or UNNAMED)
    if not images:
        raise StreamError(f"{uri}: expected at least one frame, got none")
    return images, labels, conditions


def _read_facts(path: Path) -> tuple[list[int], list[str]]:
    """Labels and conditions of a recording that was drawn before."""
    try:
        record = json.loads(path.read_bytes())
        return record["labels"], record["conditions"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ArtifactError(f"{path}: damaged cache file ({err}); delete it and run again") from err


def _region(frame: Frame) -> Image:
    """The part of a frame that is classified, in memory of its own."""
    if frame.region is None:
        return frame.image
    left, top, right, bottom = frame.region
    image: Image = frame.image[max(top, 0) : bottom, max(left, 0) : right].copy()
    return image

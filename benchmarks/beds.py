"""Every preset, variant and baseline on two test beds, in several orders, five seeds.

    python benchmarks/beds.py --json benchmarks/results/beds.json

Each entry of the result is one run of `gain-eval` (its command is in it) without the series that
only pictures need. The bed of a thousand photographs has one image per class, so that its stream
sorted by class would be one more shuffle; it runs shuffled only.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from gain_apps.evaluate import main as gain_eval

BEDS = Path("../shared/data/beds")
# The order in which the bed's numbers were first published; impulse_noise is not in it.
K36_DOMAINS = (
    "brightness,zoom_blur,pixelate,frost,jpeg_compression,motion_blur,snow,defocus_blur,"
    "glass_blur,elastic_transform,fog,contrast,gaussian_noise,shot_noise"
)
PRESETS = "tracked,balanced,paper,paper-l2"
# The default with one part taken out or changed at a time.
VARIANTS = (
    "tracked:measured=true,tracked:independence_test=false,tracked:class_prior=false,tracked:mixture_test=false,"
    "tracked:match_scale=false,tracked:match_scale=false:mixture_test=false,tracked:label_draws=0,tracked:shrinkage=0,tracked:shrinkage=2,"
    "tracked:half_life=256,tracked:half_life=4096,tracked:guard=false,tracked:rule=full"
)
BASELINES = "neo,neo-continual,neo-continual:rate=0.3,foa-shift,t3a,lame,recentre"
K36 = [
    str(BEDS / "vit_k36.npz"),
    *("--domains", K36_DOMAINS, "--severity", "1"),
    *("--methods", f"{PRESETS},{VARIANTS},{BASELINES},dota"),
]
RUNS = {
    "vit_k36, shuffled": [*K36, "--order", "shuffled"],
    "vit_k36, runs of one class": [*K36, "--order", "runs"],
    "vit_k36, sorted by class": [*K36, "--order", "sorted"],
    "vit_k36, long-tailed": [*K36, "--order", "long-tailed"],
    "vit_k36, one class only": [*K36, "--order", "one-class"],
    # A thousand classes make the diagnosis of every step cost more than the step.
    "efficientnet_photos_k1000, shuffled": [
        str(BEDS / "efficientnet_photos_k1000.npz"),
        *("--severity", "5", "--order", "shuffled", "--no-diagnosis"),
        *("--methods", f"{PRESETS},{BASELINES},dota:covariance=pooled"),
    ],
}


def main() -> int:
    """Run them all and write one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="where to write the numbers")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(RUNS), help="this run only, kept beside others")
    parser.add_argument("--family", help="only methods of this name, kept beside others")
    args = parser.parse_args()
    report = json.loads(args.json.read_text()) if args.json.exists() else {}
    for name, arguments in RUNS.items():
        if args.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "result.json"
            flags = ["--seeds", str(args.seeds), "--json", str(path)]
            if args.family:
                methods = arguments[arguments.index("--methods") + 1].split(",")
                chosen = [each for each in methods if each.partition(":")[0] == args.family]
                # The last of two flags is the one that counts.
                flags += ["--methods", ",".join(chosen)]
            status = gain_eval([*arguments, *flags])
            if status != 0:
                return status
            result = json.loads(path.read_text())
        for record in result["methods"].values():
            del record["series"]
        result["command"] = result["command"].replace(str(path), "result.json")
        if args.family:
            known = report[name]
            known["methods"] = {
                key: record
                for key, record in known["methods"].items()
                if key.partition(":")[0] != args.family
            } | result["methods"]
            result = known
        report[name] = result
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Examples for the --help of every command: what people do with it most."""

EXAMPLES = {
    "run": [
        "fedlga run --preset digits --method scaffold --set lr=0.1",
        "fedlga run mine.py --stragglers complete --out runs/mine",
        "fedlga run --resume runs/mine --rounds 400",
    ],
    "compare": [
        "fedlga compare --preset digits --methods fedavg,fedlga --seeds 0-4",
        "fedlga compare mine.py --stragglers wait,drop,keep,complete --format markdown",
        "fedlga compare --preset fleet --arm 'fedavg keep lr=0.1' --arm 'fedavg complete lr=0.03'",
    ],
    "tune": [
        "fedlga tune --preset fleet --stragglers complete,keep,wait --grid lr=0.01,0.03,0.1",
        "fedlga tune --preset digits --arm 'fedavg complete' --arm 'fedprox keep' --grid lr=0.05,0.1 --grid mu=0.1,1",
    ],
    "audit": [
        "fedlga audit --preset digits --rounds 20",
        "fedlga audit --only 'batch, 0.1' --out audit.csv",
    ],
    "check": [
        "fedlga check fleet mine:OldPhones",
        "fedlga check task mine.py",
    ],
    "completion": [
        "fedlga completion bash >> ~/.bashrc",
        "fedlga completion fish > ~/.config/fish/completions/fedlga.fish",
    ],
    "data list": ["fedlga data list", "fedlga data list --data-dir /data"],
    "data fetch": ["fedlga data fetch fashion-mnist", "fedlga data fetch cifar-10 --data-dir /data"],
    "data show": [
        "fedlga data show --preset digits --set partition=dirichlet --out held.png",
        "fedlga data show mine.py --set devices=20",
    ],
    "deadline": [
        "fedlga deadline --preset digits --set fleet=speeds --set speed_sigma=1",
        "fedlga deadline mine.py --set 'speeds=5, 2.5, 1, 0.5' --set devices=4",
    ],
    "doctor": ["fedlga doctor", "fedlga doctor --json"],
    "fields": ["fedlga fields", "fedlga fields lr"],
    "fleet init": [
        "fedlga fleet init my-fleet --nodes 5",
        "fedlga fleet init my-fleet --task mine.py --host superlink.example.org",
    ],
    "fleet up": ["fedlga fleet up my-fleet --nodes 5", "fedlga fleet up my-fleet --nodes 3 --seconds-per-step 0,0,0.5"],
    "fleet add": ["fedlga fleet add my-fleet", "fedlga fleet add my-fleet --count 3"],
    "fleet revoke": ["fedlga fleet revoke my-fleet 3", "fedlga fleet revoke my-fleet 3 4"],
    "fleet rekey": ["fedlga fleet rekey my-fleet 3", "fedlga fleet rekey my-fleet 3 4"],
    "fleet renew": ["fedlga fleet renew my-fleet", "fedlga fleet renew my-fleet --authority --credential"],
    "fleet status": ["fedlga fleet status my-fleet", "fedlga fleet status my-fleet --json"],
    "fleet sync": ["fedlga fleet sync my-fleet", "fedlga fleet sync /srv/my-fleet"],
    "fleet write": ["fedlga fleet write my-fleet", "fedlga fleet write /srv/my-fleet"],
    "fleet prune": ["fedlga fleet prune my-fleet --dry-run", "fedlga fleet prune my-fleet --keep 5 --days 30"],
    "fleet monitor": ["fedlga fleet monitor my-fleet", "fedlga fleet monitor my-fleet --listen 10.0.0.1"],
    "fleet down": ["fedlga fleet down my-fleet", "fedlga fleet down /srv/my-fleet"],
    "list": ["fedlga list", "fedlga list fleets"],
    "paper": ["fedlga paper tau-max --quick", "fedlga paper all --seeds 0-6 --out paper"],
    "presets": ["fedlga presets", "fedlga presets digits"],
    "theory": ["fedlga theory --preset digits", "fedlga theory mine.py --out theory.json"],
    "watch": ["fedlga watch runs", "fedlga watch comparisons/mine --port 9000"],
    "report": [
        "fedlga report runs/mine",
        "fedlga report comparisons/* --out comparisons.html",
    ],
}

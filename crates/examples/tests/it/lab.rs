//! The lab example as its users run it: on bundled traces, on files of their own, and on what is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A run of the lab: where it wrote, and what it said.
struct Run {
    folder: tempfile::TempDir,
    output: Output,
}

/// The example itself, which cargo builds beside the tests.
fn lab(arguments: &[&str]) -> Run {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("lab{}", std::env::consts::EXE_SUFFIX));
    assert!(path.exists(), "build the examples first");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(path)
        .current_dir(crate::root())
        .args(arguments)
        .arg("--out")
        .arg(folder.path())
        .output()
        .unwrap();
    Run { folder, output }
}

impl Run {
    fn ok(self) -> Self {
        assert_eq!(self.output.status.code(), Some(0), "{}", self.error());
        self
    }

    fn error(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    /// A row of the table: its cells after the name.
    fn row(&self, name: &str) -> Vec<String> {
        let report = self.file("report.txt");
        let row = report.lines().find_map(|line| {
            let cells = line.trim().strip_prefix(name)?;
            cells.starts_with("  ").then_some(cells)
        });
        let row = row.unwrap_or_else(|| panic!("no row `{name}` in\n{report}"));
        let cells = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(Into::into).collect()
    }
}

/// A folder of files, given by name and text.
fn files(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let write = |(name, text): &(&str, &str)| {
        let path: PathBuf = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let paths = files.iter().map(write).collect();
    (folder, paths)
}

const GATEWAY: &str = "crates/examples/examples/lab/gateway.toml";
const TIGHT: &str = "crates/examples/examples/lab/tight.toml";

#[test]
fn the_gateways_policy_in_a_file_admits_what_the_gateway_admits() {
    let run = lab(&[GATEWAY]).ok();
    assert_eq!(run.row("arrived"), ["8,819"]);
    assert_eq!(run.row("admitted"), ["8,501"]);
    assert_eq!(run.row("most in flight"), ["24"]);
    let page = run.file("report.html");
    for part in [
        "<!DOCTYPE html>",
        "Arrivals and admissions",
        "Refused, by leg",
        "Waiting",
        "In flight",
        "Use of the budgets",
        "all that flows in",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "it needs no network"
    );
    assert_eq!(run.file("requests.csv").lines().count(), 1 + 8_819);
}

#[test]
fn a_policy_in_json_does_what_the_same_in_toml_does() {
    let (_folder, paths) = files(&[(
        "gateway.json",
        r#"{"max_wait": "5s", "max_queue": 200, "leg": [
            {"name": "requests", "kind": "token-bucket", "quota": "300/min"},
            {"name": "tokens", "kind": "token-bucket", "quota": "600000/min", "per": "tokens"},
            {"name": "window", "kind": "sliding-window", "limit": 40, "window": "2s"},
            {"name": "in flight", "kind": "semaphore", "limit": 24}]}"#,
    )]);
    let slice = ["--first", "1500"];
    let json = lab(&[&[paths[0].as_str()], &slice[..]].concat()).ok();
    let toml = lab(&[&[GATEWAY], &slice[..]].concat()).ok();
    assert!(json.file("requests.csv") == toml.file("requests.csv"));
    assert!(json.file("report.txt") == toml.file("report.txt"));
}

#[test]
fn a_linked_leg_is_no_budget_and_the_page_says_so() {
    let (_folder, paths) = files(&[(
        "linked.toml",
        "max_wait = \"2s\"\n[[leg]]\nname = \"throttle\"\nkind = \"token-bucket\"\nquota = \"1/s burst 1\"\n\
         when = { load_of = \"in flight\", metric = \"use\", above = 0.5 }\n\
         [[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = 24\n",
    )]);
    let run = lab(&[&paths[0], "--first", "2000"]).ok();
    assert_ne!(run.row("by throttle"), ["0"], "it throttles under load");
    let page = run.file("report.html");
    assert!(page.contains("Conditional legs count only while they apply"));
    assert!(
        !page.contains("data-name=\"throttle\" data-values=\"100"),
        "and is not drawn as a budget"
    );
    assert!(page.contains("linked</td>"));
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let arguments = [
        "crates/examples/examples/lab/web.toml",
        "--trace",
        "nasa",
        "--first",
        "4000",
    ];
    let [first, second] = [lab(&arguments).ok(), lab(&arguments).ok()];
    for name in ["report.txt", "report.html", "requests.csv"] {
        assert!(first.file(name) == second.file(name), "{name}");
    }
}

#[test]
fn side_by_side_is_the_same_as_two_single_runs() {
    let slice = ["--trace", "azure-code", "--first", "3000"];
    let single = |policy| lab(&[&[policy], &slice[..]].concat()).ok();
    let both = lab(&[&[GATEWAY, "--against", TIGHT], &slice[..]].concat()).ok();
    let (gateway, tight) = (single(GATEWAY), single(TIGHT));
    let (first, second) = (gateway.file("requests.csv"), tight.file("requests.csv"));
    let header = first.lines().next().unwrap();
    let joined: Vec<_> = first
        .lines()
        .chain(second.lines().filter(|line| *line != header))
        .collect();
    let csv = both.file("requests.csv");
    assert!(csv.lines().collect::<Vec<_>>() == joined, "request by request");
    assert!(
        first.contains(",tokens,TimedOut,"),
        "a request was refused: {}",
        gateway.file("report.txt")
    );
    for row in ["arrived", "admitted", "refused", "waited", "wait p99", "most waiting"] {
        let cells = [gateway.row(row), tight.row(row)].concat();
        assert_eq!(both.row(row), cells, "{row}");
    }
}

#[test]
fn a_trace_of_ones_own_runs_to_the_nanosecond() {
    let (_folder, paths) = files(&[
        (
            "one.toml",
            "max_wait = \"1s\"\n[[leg]]\nname = \"tokens\"\nkind = \"token-bucket\"\nquota = \"10/s burst 10\"\nper = \"tokens\"\n\
             [[leg]]\nname = \"one at a time\"\nkind = \"semaphore\"\nlimit = 1\n",
        ),
        // Out of order, with a column that says nothing, and 3 tokens of 8 given back by the first.
        (
            "own.csv",
            "hold,at,who,tokens,tokens.used\n0.5,10,ann,8,5\n0.25,10.1,bob,3,3\n2,10.2,cat,0,0\n0,10.3,dan,1,1\n",
        ),
    ]);
    let run = lab(&[&paths[0], "--trace", &paths[1]]).ok();
    let lines = run.file("requests.csv");
    let lines: Vec<_> = lines.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "one,0,0.000000000,0.000000000,,,0.500000000",
            "one,1,0.100000000,0.400000000,,,0.750000000",
            "one,2,0.200000000,0.550000000,,,2.750000000",
            "one,3,0.300000000,1.000000000,one at a time,TimedOut,",
        ]
    );
}

#[test]
fn a_damaged_trace_is_refused_with_its_line() {
    for (text, said) in [
        ("when\n1\n", ":1: the column `at` is missing; there are: when"),
        (
            "at,beds\n1,2\n",
            ":1: the column `tokens` is missing; there are: at, beds",
        ),
        ("at\n1\nsoon\n", ":3: column `at`: `soon` is no number of seconds"),
        ("at\n1\n-1\n", ":3: column `at`: `-1` is no number of seconds"),
        ("at\nNaN\n", ":2: column `at`: `NaN` is no number"),
        ("at\n2\n1\n", ":3: column `at`: `1` is earlier than the line before"),
        (
            "at,tokens\n1,5\n2,many\n",
            ":3: column `tokens`: `many` is no whole number",
        ),
        ("at,tokens\n1,5\n2\n", ":3: CSV error"),
        ("at,hold\n1,\n", ":2: column `hold`: `` is no number of seconds"),
        (
            "at,failed\n1,perhaps\n",
            ":2: column `failed`: `perhaps` is neither yes nor no",
        ),
        ("at\n", "it holds no requests"),
    ] {
        let plain = "[[leg]]\nname = \"at once\"\nkind = \"semaphore\"\nlimit = 3\n";
        let (_folder, paths) = files(&[("own.csv", text), ("plain.toml", plain)]);
        let costs = text.contains("tokens") || text.contains("beds");
        let policy = if costs { GATEWAY } else { &paths[1] };
        let run = lab(&[policy, "--trace", &paths[0]]);
        assert_eq!(run.output.status.code(), Some(2), "{text}");
        assert!(
            run.error()
                .contains(&format!("{}{said}", if said.starts_with(':') { "own.csv" } else { "" })),
            "{}",
            run.error()
        );
    }
}

#[test]
fn wrong_policies_and_arguments_exit_with_2_and_say_where() {
    let (_folder, paths) = files(&[
        ("typo.toml", "[[leg]]\nname = \"a\"\nkind = \"semaphore\"\nlimt = 3\n"),
        (
            "cost.json",
            r#"{"leg": [{"name": "a", "kind": "semaphore", "limit": 3, "per": "beds"}]}"#,
        ),
    ]);
    let cases: [(&[&str], &str); 7] = [
        (&[&paths[0]], "typo.toml:4:1"),
        (&[&paths[1]], "the leg `a` counts `beds`"),
        (&["no/such.toml"], "no/such.toml"),
        (&[GATEWAY, "--trace", "no/such.csv"], "no/such.csv"),
        (&[GATEWAY, "--propose", "refused=200%"], "`refused=200%` is no share"),
        (&[GATEWAY, "--propose", "wait=1s"], "say what may be refused"),
        (
            &[GATEWAY, "--propose", "refused=1%", "--against", TIGHT],
            "cannot be used with",
        ),
    ];
    for (arguments, said) in cases {
        let run = lab(arguments);
        assert_eq!(run.output.status.code(), Some(2), "{arguments:?}");
        assert!(run.error().contains(said), "{}", run.error());
    }
}

#[test]
fn names_from_files_are_escaped_in_the_page() {
    let (_folder, paths) = files(&[(
        "odd.toml",
        "[[leg]]\nname = \"<script>alert('x')</script> & \\\"co\\\"\"\nkind = \"semaphore\"\nlimit = 1\nshadow = true\n\
         [[leg]]\nname = \"two\"\nkind = \"semaphore\"\nlimit = 2\n",
    )]);
    let run = lab(&[&paths[0], "--first", "500"]).ok();
    let page = run.file("report.html");
    assert!(page.contains("&lt;script&gt;alert"), "the name is there");
    assert_eq!(page.matches("<script>").count(), 1, "and is no script");
}

#[test]
fn work_that_fails_opens_a_breaker() {
    let (_folder, paths) = files(&[
        (
            "breaker.toml",
            "max_wait = \"1s\"\n[[leg]]\nname = \"breaker\"\nkind = \"breaker\"\nconsecutive_failures = 3\n\
             [[leg]]\nname = \"slots\"\nkind = \"semaphore\"\nlimit = 9\n",
        ),
        ("own.csv", "at,failed\n0,no\n1,yes\n2,yes\n3,yes\n4,no\n5,no\n60,no\n"),
    ]);
    let run = lab(&[&paths[0], "--trace", &paths[1]]).ok();
    assert_eq!(run.row("by breaker"), ["2"]);
    assert_eq!(run.row("admitted"), ["5"]);
}

#[test]
fn a_waiter_without_end_is_counted_and_the_run_ends() {
    let (_folder, paths) = files(&[
        (
            "never.toml",
            "[[leg]]\nname = \"spent once\"\nkind = \"token-bucket\"\nquota = \"zero burst 2\"\n",
        ),
        ("own.csv", "at\n0\n1\n2\n3\n"),
    ]);
    let run = lab(&[&paths[0], "--trace", &paths[1]]).ok();
    assert_eq!(run.row("admitted"), ["2"]);
    assert_eq!(run.row("by (waits for ever)"), ["2"]);
}

/// A policy whose numbers the proposal below changes.
fn two(requests: &str, at_once: &str) -> String {
    format!(
        "max_wait = \"2s\"\n\n[[leg]]\nname = \"requests\"\nkind = \"token-bucket\"\nquota = \"{requests}\" # as sold\n\n\
         [[leg]]\nname = \"at once\"\nkind = \"semaphore\"\nlimit = {at_once}\n"
    )
}

#[test]
fn proposed_limits_meet_the_aim_and_a_step_less_does_not() {
    let share = |requests: &str, at_once: &str| {
        let (_folder, paths) = files(&[("two.toml", &two(requests, at_once))]);
        let run = lab(&[&paths[0], "--trace", "azure-code", "--first", "2000"]).ok();
        let wait = run.row("wait p99")[0].trim_end_matches(" s").parse::<f64>().unwrap();
        let refused = run.row("refused")[0].replace(',', "").parse::<u32>().unwrap();
        refused <= 60 && wait <= 0.5
    };
    let (_folder, paths) = files(&[("two.toml", &two("60/min burst 60", "4"))]);
    let aim = [
        "--trace",
        "azure-code",
        "--first",
        "2000",
        "--propose",
        "refused=3%",
        "wait=500ms",
    ];
    let run = lab(&[&[paths[0].as_str()], &aim[..]].concat()).ok();
    // The file is the one that was given, comments and all, with two other numbers.
    let proposed = run.file("proposed.toml");
    let between = |from: &str, to: &str| {
        let rest = proposed.split(from).nth(1).unwrap();
        rest.split(to).next().unwrap().trim().to_owned()
    };
    let (quota, limit) = (between("quota = \"", "\" # as sold"), between("limit = ", "\n"));
    assert_eq!(proposed, two(&quota, &limit));
    assert!(!share("60/min burst 60", "4"), "as given it misses the aim");
    assert!(share(&quota, &limit), "as proposed it meets the aim: {quota}, {limit}");
    let count: u64 = quota.split('/').next().unwrap().parse().unwrap();
    let limit: u64 = limit.parse().unwrap();
    let less = |value: u64| match value {
        0..=100 => value - 1,
        101..=1_000 => value - 10,
        _ => value - 100,
    };
    let lower = format!("{}/min", less(count));
    assert!(!share(&lower, &limit.to_string()), "{lower} is not enough");
    assert!(
        !share(&quota, &less(limit).to_string()),
        "{} at once are not enough",
        less(limit)
    );
    assert!(
        run.file("report.html").contains("misses it"),
        "it says what it guarantees"
    );
}

#[test]
fn an_aim_that_no_limits_meet_exits_with_1() {
    let (_folder, paths) = files(&[
        (
            "closed.toml",
            "[[leg]]\nname = \"shut\"\nkind = \"token-bucket\"\nquota = \"zero\"\n[[leg]]\nname = \"at once\"\nkind = \"semaphore\"\nlimit = 1\n",
        ),
        ("own.csv", "at\n0\n1\n"),
    ]);
    let run = lab(&[&paths[0], "--trace", &paths[1], "--propose", "refused=10%"]);
    assert_eq!(run.output.status.code(), Some(1), "{}", run.error());
    assert!(
        run.error().contains("not even with all limits out of the way"),
        "{}",
        run.error()
    );
    assert!(!Path::new(&run.folder.path().join("proposed.toml")).exists());
}

/// Given the gateway's policy as one of a service, under a name and as a tier, then it is replayed as the file of it alone is.
#[test]
fn a_policy_of_a_services_file_is_replayed_by_its_name() {
    let alone = std::fs::read_to_string(crate::root().join(GATEWAY)).unwrap();
    let under = |table: &str| format!("[{table}]\n{}", alone.replace("[[leg]]", &format!("[[{table}.leg]]")));
    let (named, tier) = (under("policy.gateway"), under("keyed.tenant.tier.free"));
    let service = format!("{named}\n[keyed.tenant]\nmax_keys = 9\ndefault = \"free\"\n{tier}");
    let (_folder, paths) = files(&[("service.toml", &service)]);
    for name in ["gateway", "tenant.free"] {
        assert_eq!(lab(&[&paths[0], "--policy", name]).ok().row("admitted"), ["8,501"]);
    }
    let run = lab(&["plan", &paths[0], &paths[0], "--policy", "gate", "--log", "azure-code"]);
    assert_eq!(run.output.status.code(), Some(2));
    let said = run.error();
    assert!(
        said.contains("`gate` is no policy, and there are: gateway, tenant.free"),
        "{said}"
    );
}

#[test]
fn a_plan_lists_the_requests_that_flip() {
    let run = lab(&["plan", GATEWAY, TIGHT, "--log", "azure-code"]).ok();
    let said = String::from_utf8(run.output.stdout.clone()).unwrap();
    let (said, _) = said.split_once("written to ").unwrap();
    assert_eq!(said, include_str!("plan_azure_code.txt"));
    let flips = run.file("flips.csv");
    assert_eq!(flips.lines().count(), 1 + 1_168 + 94);
    assert_eq!(flips.lines().next(), Some("request,at,tokens,before,after,work"));
}

#[test]
fn a_plan_that_denies_more_than_it_may_fails() {
    let plan = |bound: &[&str]| {
        let run = lab(&[&["plan", GATEWAY, TIGHT, "--log", "azure-code", "--list", "0"], bound].concat());
        (run.output.status.code(), run.error())
    };
    assert_eq!(
        plan(&["--most-denied", "1168", "--most-allowed", "2%"]),
        (Some(0), String::new())
    );
    let (code, said) = plan(&["--most-denied", "13%"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        said,
        "lab: the plan would deny 1168 of 8819 requests, which is more than it may\n"
    );
    let (code, said) = plan(&["--most-allowed", "93"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("would allow 94 of 8819"), "{said}");
    let (code, said) = plan(&["--most-allowed", "101%"]);
    assert_eq!(code, Some(2));
    assert!(
        said.contains("a number of requests, or a share of 0% to 100%, is allowed"),
        "{said}"
    );
}

#[test]
fn a_log_that_a_policy_wrote_can_be_planned_on() {
    use std::time::Duration;
    use tollgate::{Ask, Cost, LimiterExt, ManualClock, Outcome};
    use tollgate_config::{Format, PolicySpec, parse};
    use tollgate_observe::record::AdmissionLog;

    const OLD: &str = "max_queue = 0\n[[leg]]\nname = \"slots\"\nkind = \"semaphore\"\nlimit = 2\n\
                       [[leg]]\nname = \"tokens\"\nkind = \"token-bucket\"\nquota = \"10/s burst 100\"\nper = \"tokens\"\n";
    let clock = ManualClock::new();
    let tokens = Cost::new("tokens");
    let log = AdmissionLog::new(1_000, &[tokens]);
    let gate = log.record(parse::<PolicySpec>(OLD, Format::Toml).unwrap().build(&clock).unwrap());
    for _ in 0..20 {
        let ask = Ask::one().cost(tokens, 5);
        let held = [gate.try_admit(ask).unwrap(), gate.try_admit(ask).unwrap()];
        assert!(gate.try_admit(ask).is_err(), "the third finds both slots taken");
        clock.advance(Duration::from_millis(800));
        for mut permit in held {
            permit.settle(tokens, 4).unwrap();
            permit.finish(Outcome::Success);
        }
        clock.advance(Duration::from_millis(200));
    }
    let mut text = Vec::new();
    assert_eq!(log.write(&mut text).unwrap(), 60);
    let text = String::from_utf8(text).unwrap();
    let none = OLD.replace("limit = 2", "limit = 1");
    // A semaphore counts the cost, and corrects nothing.
    let held = "max_queue = 0\n[[leg]]\nname = \"held\"\nkind = \"semaphore\"\nlimit = 100\nper = \"tokens\"\n";
    let policies = [
        ("old.toml", OLD),
        ("new.toml", &none),
        ("log.csv", &text),
        ("held.toml", held),
    ];
    let (_folder, paths) = files(&policies);
    let counts = |new: &str| {
        let run = lab(&["plan", &paths[0], new, "--log", &paths[2]]).ok();
        let said = String::from_utf8(run.output.stdout.clone()).unwrap();
        let count = |row: &str| {
            let line = said.lines().find(|line| line.trim_start().starts_with(row));
            line.map(|line| {
                line.trim_start()[row.len()..]
                    .split_whitespace()
                    .next()
                    .unwrap()
                    .to_owned()
            })
        };
        [
            "all",
            "denied before",
            "allow -> deny",
            "deny -> allow",
            "work not known",
        ]
        .map(count)
    };
    let some = |numbers: [&str; 5]| numbers.map(|number| Some(number.to_owned()));
    assert_eq!(counts(&paths[0]), some(["60", "20", "0", "0", "20"]));
    assert_eq!(counts(&paths[1]), some(["60", "20", "20", "0", "20"]));
    assert_eq!(counts(&paths[3]), some(["60", "20", "0", "20", "20"]));
}

/// A lab that serves, until it is dropped.
struct Served(std::process::Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_served_page_gives_the_numbers_of_the_command_line() {
    use std::io::{BufRead, BufReader, Read, Write};

    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("lab{}", std::env::consts::EXE_SUFFIX));
    let policy = "crates/examples/examples/lab/gateway.toml";
    let lab_serves = Command::new(path)
        .current_dir(crate::root())
        .args([policy, "--first", "2000", "--serve", "0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut served = Served(lab_serves);
    let mut said = String::new();
    BufReader::new(served.0.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let address = said.trim().strip_prefix("lab: http://").unwrap().trim_end_matches('/');
    let get = |target: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    };
    // As the file has it.
    let alone = lab(&[policy, "--first", "2000"]).ok();
    let (status, table) = get("/table");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(alone.file("report.txt").starts_with(&table), "{table}");

    // The last leg, the calls in flight, at three: step 2.
    let text = std::fs::read_to_string(crate::root().join(policy)).unwrap();
    let legs = text.matches("[[leg]]").count();
    let limit = text.rfind("limit = ").unwrap();
    let end = limit + text[limit..].find('\n').unwrap();
    let changed = format!("{}limit = 3{}", &text[..limit], &text[end..]);
    let (_folder, names) = files(&[("gateway.toml", &changed)]);
    let alone = lab(&[&names[0], "--first", "2000"]).ok();
    let (_, moved) = get(&format!("/table?{}=2", legs - 1));
    assert_ne!(moved, table);
    assert!(alone.file("report.txt").starts_with(&moved), "{moved}");

    let (_, page) = get("/");
    assert_eq!(page.matches("type=\"range\"").count(), legs, "a slider for each leg");
    assert_eq!(get("/nothing").0, "HTTP/1.1 404 Not Found");
}

//! The gateway example on its real traces, and its verifier on logs that were tampered with.

#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/audit.rs"]
mod audit;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/pace.rs"]
mod pace;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/report.rs"]
mod report;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/sim.rs"]
mod sim;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/trace.rs"]
mod trace;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/verify.rs"]
mod verify;
#[allow(unreachable_pub, dead_code)]
#[path = "../../../../examples/gateway/witness.rs"]
mod witness;

use crate::report::page;
use audit::{Audit, Limits, Row};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tollgate::ManualClock;

fn data(name: &str) -> PathBuf {
    crate::root().join("examples/data").join(name)
}

fn code() -> Vec<trace::Request> {
    trace::read(&data("azure_llm_2023_code.csv.gz")).unwrap()
}

/// Runs the first `requests` of the code trace and returns the log's path, in a folder that lives as long as it.
fn run(requests: usize) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.csv");
    let mut trace = code();
    trace.truncate(requests);
    let audit = Arc::new(Audit::create(&path).unwrap());
    let progress: sim::Progress = Arc::new(|| {});
    sim::run(&[sim::Tenant::code(trace)], &audit, &ManualClock::new(), &progress).unwrap();
    assert_eq!(audit.peak(), audit::WRITERS, "the cap binds, and holds");
    assert_eq!(audit.opened(), audit::WRITERS);
    (folder, path)
}

#[test]
fn the_whole_code_trace_is_admitted_as_its_policy_says() {
    let (_folder, path) = run(usize::MAX);
    let (limits, rows) = audit::read(&path).unwrap();
    assert_eq!(verify::violations(&limits, &rows), Vec::<String>::new());
    let summary = report::summary(&limits[0], &rows);
    assert_eq!(summary.arrived, 8_819);
    let refused = summary.arrived - summary.admitted;
    assert!(
        (2.0..6.0).contains(&(100.0 * refused as f64 / 8_819.0)),
        "{refused} refused"
    );
    for leg in ["requests", "tokens", "window", "in flight"] {
        // A refusal names the first leg that refuses, and "in flight" is the last.
        assert!(summary.refused[leg] >= 5, "{leg}: {:?}", summary.refused);
    }
    assert_eq!(summary.peak_in_flight, 24);
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let [first, second] = [run(1_500), run(1_500)].map(|(_folder, path)| std::fs::read(path).unwrap());
    assert!(first == second);
}

/// The example itself, which cargo builds beside the tests.
fn gateway() -> std::process::Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.set_file_name("examples");
    path.push(format!("gateway{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.exists(),
        "build the examples first: cargo test does, or cargo build --examples"
    );
    std::process::Command::new(path)
}

/// Runs a log, changes its rows, and asserts that the verifier exits with 1 and says `rule`.
fn caught_after(change: impl FnOnce(&mut Vec<Row>), rule: &str) {
    let (_folder, path) = run(3_000);
    let verify = || gateway().arg("--verify").arg(&path).output().unwrap();
    assert_eq!(verify().status.code(), Some(0));
    let (limits, mut rows) = audit::read(&path).unwrap();
    change(&mut rows);
    std::fs::remove_file(&path).unwrap();
    Audit::create(&path).unwrap().write_limits(&limits[0]).unwrap();
    let mut file = audit::open(&path).unwrap();
    for row in &rows {
        audit::write_row(&mut file, row).unwrap();
    }
    let output = verify();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(rule), "{said}");
}

fn first_refused(rows: &[Row]) -> usize {
    rows.iter().position(|row| row.leg.is_some()).unwrap()
}

#[test]
fn an_admission_too_many_is_caught() {
    let admit = |rows: &mut Vec<Row>| {
        let last = rows.iter().filter_map(|row| row.finished_order).max().unwrap();
        let first = first_refused(rows);
        let row = &mut rows[first];
        let finished = row.ended_wait + 150_000_000 + 50_000 * row.context + 30_000_000 * row.generated;
        (row.leg, row.reason) = (None, None);
        (row.admitted_order, row.finished_order) = (Some(last + 1), Some(last + 2));
        (row.counted, row.noted) = (Some(row.ended_wait), Some(row.ended_wait));
        (row.finished, row.settled) = (Some(finished), Some(finished));
    };
    caught_after(admit, "out of order");
}

#[test]
fn an_admission_moved_earlier_is_caught() {
    // The one that waited longest: when it arrived there was no room for it.
    let move_earlier = |rows: &mut Vec<Row>| {
        let admitted = rows.iter_mut().filter(|row| row.admitted_order.is_some());
        let row = admitted.max_by_key(|row| row.ended_wait - row.arrived).unwrap();
        let waited = row.ended_wait - row.arrived;
        row.ended_wait = row.arrived;
        (row.counted, row.noted) = (Some(row.arrived), Some(row.arrived));
        row.finished = row.finished.map(|at| at - waited);
        row.settled = row.settled.map(|at| at - waited);
    };
    caught_after(move_earlier, "out of order");
}

#[test]
fn a_dropped_refusal_is_caught() {
    caught_after(|rows| drop(rows.remove(first_refused(rows))), "without a gap");
}

#[test]
fn understated_tokens_are_caught() {
    let understate = |rows: &mut Vec<Row>| {
        rows[7].context -= 1;
        rows[7].estimate -= 1;
    };
    caught_after(understate, "tokens are logged");
}

#[test]
fn a_permit_held_longer_is_caught() {
    let hold = |rows: &mut Vec<Row>| {
        rows[7].finished = rows[7].finished.map(|at| at + 1);
        rows[7].settled = rows[7].settled.map(|at| at + 1);
    };
    caught_after(hold, "another time than it worked");
}

#[test]
fn an_admission_counted_as_of_long_ago_is_caught() {
    let count_early = |rows: &mut Vec<Row>| rows[7].counted = rows[7].counted.map(|at| at - 10_000_001);
    caught_after(count_early, "too long ago");
}

/// Runs a slice live, through the example itself, and returns the folder with what it wrote.
fn live(speed: &str, requests: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = gateway()
        .args(["--live", speed, "--first", requests, "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    folder
}

#[test]
fn a_live_run_on_real_threads_holds_every_limit_and_writes_its_page() {
    let folder = live("3600", "2000");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    for part in ["3600 times as fast", "In flight", "Use of the budgets", "<svg"] {
        assert!(page.contains(part), "{part}");
    }
    let (limits, rows) = audit::read(&folder.path().join("audit.csv")).unwrap();
    assert_eq!((limits.len(), rows.len()), (2, 4_000));
    assert!(limits.iter().all(|limits| limits.live && limits.speed == 3_600));
    // A minute's quota is now one of a sixtieth of a second.
    assert_eq!(limits[0].requests, [300, 60_000_000_000 / 3_600, 300]);
    assert!(rows.iter().any(|row| row.leg.is_some()) && rows.iter().any(|row| row.finished.is_some()));
    assert_eq!(verify::violations(&limits, &rows), Vec::<String>::new());
}

#[test]
fn a_live_log_is_held_to_each_ledger_as_well() {
    let folder = live("3600", "2000");
    let (limits, rows) = audit::read(&folder.path().join("audit.csv")).unwrap();
    type Tighten = fn(&mut Limits);
    let tightened: [(&str, Tighten); 4] = [
        ("more requests", |limits| limits.requests = [1, limits.requests[1], 10]),
        ("more tokens", |limits| limits.tokens[2] /= 100),
        ("more in one window", |limits| limits.window[0] = 1),
        ("more in flight", |limits| limits.in_flight = 1),
    ];
    for (rule, tighten) in tightened {
        let mut limits = vec![limits[0].clone()];
        tighten(&mut limits[0]);
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.tenant == limits[0].tenant)
            .cloned()
            .collect();
        let found = verify::violations(&limits, &rows);
        assert!(
            found.iter().any(|violation| violation.contains(rule)),
            "{rule}: {found:?}"
        );
    }
}

/// What was used too much was taken at some instant while its thread was stopped, from a bucket that was full: had it been
/// taken at the first, all of it has flowed in again by the last.
#[test]
fn a_live_ledger_gives_the_benefit_of_the_doubt_and_no_more() {
    const SECOND: i64 = 1_000_000_000;
    let row = |id: i64, at: i64, context: i64, generated: i64, finished: i64, settled: i64| audit::Row {
        tenant: "one".into(),
        id,
        arrived: at,
        joined: at,
        counted: Some(at),
        noted: Some(at),
        ended_wait: at,
        estimate: context + 64,
        context,
        generated,
        admitted_order: Some(2 * id + 1),
        finished_order: Some(2 * id + 2),
        finished: Some(finished),
        settled: Some(settled),
        ..audit::Row::default()
    };
    let limits = Limits {
        tenant: "one".into(),
        requests: [100, SECOND, 100],
        tokens: [1_000, SECOND, 1_000],
        window: [100, SECOND],
        in_flight: 10,
        max_wait: SECOND,
        arrived: 2,
        trace_tokens: 700 + 936,
        lateness: 0,
        live: true,
        speed: 1,
    };
    let stopped_at = |finished: i64| {
        let rows = [
            row(0, 0, 436, 264, finished, 9_300 * SECOND / 1_000),
            row(1, 9_300 * SECOND / 1_000, 936, 0, 20 * SECOND, 20 * SECOND),
        ];
        verify::violations(std::slice::from_ref(&limits), &rows)
    };
    assert_eq!(stopped_at(9 * SECOND), Vec::<String>::new());
    assert_eq!(stopped_at(9_100 * SECOND / 1_000), Vec::<String>::new());
    let found = stopped_at(9_101 * SECOND / 1_000);
    assert_eq!(found, ["one 1: more tokens than the rate allows"]);
}

#[test]
fn wrong_arguments_and_traces_exit_with_2() {
    for arguments in [
        ["--code", "no/such/file"],
        ["--requests", "300/fortnight"],
        ["--tenant", "unknown"],
        ["--live", "0"],
        ["--verify", "no/such/log"],
    ] {
        let output = gateway().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(arguments[1]), "{said}");
    }
}

/// A ledger is what catches an admission that is consistent in itself.
#[test]
fn a_tighter_limit_than_the_run_had_is_caught_by_each_ledger() {
    let (_folder, path) = run(3_000);
    let (limits, rows) = audit::read(&path).unwrap();
    type Tighten = fn(&mut Limits);
    let tightened: [(&str, Tighten); 4] = [
        ("more requests", |limits| limits.requests[2] -= 40),
        ("more tokens", |limits| limits.tokens[2] -= 200_000),
        ("more in one window", |limits| limits.window[0] -= 1),
        ("more in flight", |limits| limits.in_flight -= 1),
    ];
    for (rule, tighten) in tightened {
        let mut limits = vec![limits[0].clone()];
        tighten(&mut limits[0]);
        let found = verify::violations(&limits, &rows);
        assert!(
            found.iter().any(|violation| violation.contains(rule)),
            "{rule}: {found:?}"
        );
    }
}

#[test]
fn a_damaged_trace_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,1,2\r\n";
    for (name, body, said) in [
        (
            "number",
            format!("{header}2023-11-16 18:17:04.0,x,2\r\n"),
            ":3: `x` is no number of tokens",
        ),
        (
            "back",
            format!("{header}2023-11-16 18:17:02.0,1,2\r\n"),
            ":3: `2023-11-16 18:17:02.0` is earlier",
        ),
        (
            "time",
            format!("{header}2023-13-16 18:17:04.0,1,2\r\n"),
            ":3: `2023-13-16 18:17:04.0` is no time",
        ),
        ("short", format!("{header}2023-11-16 18:17:04.0,1\r\n"), ":3: CSV error"),
        (
            "column",
            "TIMESTAMP,Tokens\n".into(),
            ":1: the column `ContextTokens` is missing",
        ),
        (
            "empty",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n".into(),
            "it holds no requests",
        ),
    ] {
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        gzip.write_all(body.as_bytes()).unwrap();
        gzip.finish().unwrap();
        let error = trace::read(&path).unwrap_err().to_string();
        assert!(error.contains(said), "{name}: {error}");
    }
    let mut bytes = std::fs::read(data("azure_llm_2023_code.csv.gz")).unwrap();
    bytes.truncate(20_000);
    let path = folder.path().join("cut");
    std::fs::write(&path, bytes).unwrap();
    assert!(
        trace::read(&path)
            .unwrap_err()
            .to_string()
            .contains(&format!("{}:", path.display()))
    );
    assert!(trace::read(&folder.path().join("missing")).is_err());
}

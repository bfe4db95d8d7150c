//! Budgets across restarts: by a file, and by `kill -9`.

use crate::counts;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};
use tollgate::{Ask, Clock, ManualClock};
use tollgate_budget::{Budgets, Limit, OUTPUT, Period, Rule};

fn at(seconds: u64) -> ManualClock {
    let clock = ManualClock::new();
    clock.set_wall(UNIX_EPOCH + Duration::from_secs(seconds));
    clock
}

fn built(clock: &Clock) -> Budgets {
    let rule = Rule::new("user\t1")
        .per(["team", "user"])
        .limit(Limit::cost(OUTPUT, 100, Period::Minute))
        .limit(Limit::cost(OUTPUT, 10_000, Period::Day))
        .limit(Limit::cost(OUTPUT, 500, Period::Rolling(Duration::from_secs(160))))
        .limit(Limit::in_flight(3));
    Budgets::builder().rule(rule).on(clock).max_levels(50).build().unwrap()
}

struct Snapshot(PathBuf);

impl Snapshot {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("budgets-{name}-{}", std::process::id())))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

const KEY: [(&str, &str); 2] = [("team", "a\\t\tb"), ("user", "\n")];

#[test]
fn used_and_held_units_count_after_a_restart_as_long_as_their_period_lasts() {
    let file = Snapshot::new("periods");
    let clock = at(1_000_000_000);
    let budgets = built(&clock);
    let mut meter = budgets.account(&KEY).reserve(Ask::one().cost(OUTPUT, 60)).unwrap();
    meter.extend(OUTPUT, 70).unwrap();
    budgets.save(&file.0).unwrap();
    // The minute began 40 s before.
    for (later, minute, rolling) in [(0, 70, 70), (19, 70, 70), (20, 0, 70), (160, 0, 70), (170, 0, 0)] {
        let clock = at(1_000_000_000 + later);
        let after = built(&clock);
        assert!(after.restore(&file.0).unwrap() > 0);
        assert_eq!(
            counts(&after.account(&KEY)),
            [(minute, 0), (70, 0), (rolling, 0), (0, 0)],
            "{later} s"
        );
        // It is in the next snapshot as well.
        after.save(&file.0).unwrap();
        budgets.save(&file.0).unwrap();
    }
    let next_day = built(&at(1_000_000_000 + 86_400));
    assert_eq!(next_day.restore(&file.0).unwrap(), 0);
    assert!(next_day.is_empty());
    assert_eq!(next_day.restore("no/such/file").unwrap(), 0);
}

#[test]
fn keys_beyond_the_bound_count_on_the_overflow_level_after_a_restart() {
    let file = Snapshot::new("overflow");
    let clock = at(1_000_000_000);
    let budgets = built(&clock);
    let held: Vec<_> = (0..60)
        .map(|user| {
            let account = budgets.account(&[("user", &format!("{user}"))]);
            let mut meter = account
                .reserve(Ask::one().cost(OUTPUT, 1))
                .unwrap_or_else(|error| panic!("{error}"));
            meter.extend(OUTPUT, 1).unwrap();
            drop(meter);
            account
        })
        .collect();
    budgets.save(&file.0).unwrap();
    let after = built(&clock);
    after.restore(&file.0).unwrap();
    let overflow = |budgets: &Budgets| {
        let level = budgets.usage().find(|level| level.is_overflow()).unwrap();
        level.limits().next().unwrap().used()
    };
    assert_eq!((after.len(), overflow(&after)), (50, overflow(&budgets)));
    assert_eq!(overflow(&budgets), 10);
    drop(held);
}

#[test]
fn a_file_that_is_no_whole_snapshot_counts_nothing() {
    let file = Snapshot::new("torn");
    let clock = at(1_000_000_000);
    let budgets = built(&clock);
    drop(
        budgets
            .account(&KEY)
            .reserve(Ask::one().cost(OUTPUT, 60))
            .map(|mut meter| meter.extend(OUTPUT, 60)),
    );
    budgets.save(&file.0).unwrap();
    let whole = std::fs::read(&file.0).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&file.0, &whole[..length]).unwrap();
        let after = built(&clock);
        assert!(after.restore(&file.0).is_err() && after.is_empty(), "{length} bytes");
    }
    std::fs::write(&file.0, &whole).unwrap();
    assert_eq!(built(&clock).restore(&file.0).unwrap(), 3);
}

const CHILD: &str = "BUDGETS_SNAPSHOT_OF_A_CHILD";

/// Runs in the process that is killed: 40 units are saved, then 5 are charged that are not.
fn charge_and_wait(path: &Path) -> ! {
    let budgets = built(&Clock::real());
    let mut meter = budgets.account(&KEY).reserve(Ask::one().cost(OUTPUT, 0)).unwrap();
    meter.extend(OUTPUT, 40).unwrap();
    let _saver = budgets.save_every(path, Duration::from_secs(3_600)).unwrap();
    meter.extend(OUTPUT, 5).unwrap();
    // The file that a crash leaves half written.
    std::fs::write(path.with_extension("new"), "tollgate-budget 1").unwrap();
    println!("\ncharged");
    loop {
        std::thread::park();
    }
}

/// Given a process that is killed (`kill -9`), then what it had saved is counted, and at most what it charged since is lost.
#[test]
fn a_killed_process_loses_at_most_what_it_charged_since_the_last_snapshot() {
    if let Some(path) = std::env::var_os(CHILD) {
        charge_and_wait(Path::new(&path));
    }
    let file = Snapshot::new("killed");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "--nocapture",
            "restart::a_killed_process_loses_at_most_what_it_charged_since_the_last_snapshot",
        ])
        .env(CHILD, &file.0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let charged = lines.any(|line| line.is_ok_and(|line| line == "charged"));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(std::fs::remove_file(file.0.with_extension("new")));
    assert!(charged);
    let after = built(&Clock::real());
    after.restore(&file.0).unwrap();
    // The minute may have ended since.
    assert_eq!(counts(&after.account(&KEY))[1..3], [(40, 0), (40, 0)]);
}

//! Budgets that three processes share: streams of any length, callers that leave, and processes that are killed.

use crate::rig::instant::{Nanos, nanos, now, until};
use crate::rig::process::{Process, parameters};
use crate::store::{at, key, server};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate::Ask;
use tollgate::remote::Key;
use tollgate_budget::{Limit, OUTPUT, Period, Rule, SharedAccount, SharedBudgets};
use tollgate_stores::Redis;

const PROCESSES: u64 = 3;
const TASKS: u64 = 64;
/// Units in any span of this length.
const LIMIT: u64 = 40_000;
const LENGTH: Duration = Duration::from_secs(2);
/// What a stream reserves, what it produces at most, and its largest charge.
const ESTIMATE: u64 = 24;
const LONGEST: u64 = 120;
const CHARGE: u64 = 10;
const RUN: Duration = Duration::from_secs(16);

#[derive(Clone, Serialize, Deserialize)]
struct Plan {
    store: SocketAddr,
    name: String,
    log: PathBuf,
    seed: u64,
    end: Nanos,
}

/// Units that were charged at an instant between these two.
#[derive(Clone, Copy, Debug)]
struct Charged {
    sent: Nanos,
    received: Nanos,
    units: u64,
}

/// On disk before the stream goes on: a process that is killed has told all that it has produced.
#[derive(Clone)]
struct Log(Arc<Mutex<File>>);

impl Log {
    fn write(&self, Charged { sent, received, units }: Charged) {
        let line = format!("{sent} {received} {units}\n");
        self.0
            .lock()
            .unwrap()
            .write_all(line.as_bytes())
            .expect("it is written");
    }

    fn read(path: &Path) -> Vec<Charged> {
        let text = std::fs::read_to_string(path).expect("a log");
        let mut all = Vec::new();
        for line in text.lines() {
            let mut numbers = line.split(' ').map(|number| number.parse().expect("a number"));
            let [sent, received, units] = [(); 3].map(|()| numbers.next().expect("three numbers"));
            all.push(Charged { sent, received, units });
        }
        all
    }
}

fn budgets(store: SocketAddr, name: &str) -> SharedBudgets<Redis> {
    let limit = |units| Limit::cost(OUTPUT, units, Period::Rolling(LENGTH));
    SharedBudgets::builder(Key::new(name).expect("a name"))
        .rule(Rule::new("organisation").limit(limit(LIMIT)))
        .rule(Rule::new("user").per(["user"]).limit(limit(LIMIT)))
        .ttl(Duration::from_secs(1))
        .spawn(at(store))
        .expect("rules that can be")
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// One task: a stream after the other.
async fn streams(plan: Plan, log: Log, account: SharedAccount<Redis>, mut random: Random) {
    // What a stream was charged although there was no room is sent to the store before its next question.
    let mut over: Option<(Nanos, u64)> = None;
    while now() < plan.end {
        let sent = now();
        let reserved = account.reserve(Ask::one().cost(OUTPUT, ESTIMATE));
        // A caller may leave before it is admitted.
        let patience = Duration::from_millis(if random.below(20) == 0 { random.below(4) } else { 10_000 });
        let Ok(reserved) = timeout(patience, reserved).await else {
            continue;
        };
        let received = now();
        if let Some((sent, units)) = over.take() {
            log.write(Charged { sent, received, units });
        }
        let Ok(mut meter) = reserved else {
            sleep(Duration::from_millis(10 + random.below(20))).await;
            continue;
        };
        // A caller that leaves early drops the meter where it is.
        let length = 1 + random.below(LONGEST);
        let leaves = if random.below(10) == 0 {
            random.below(length)
        } else {
            length
        };
        while meter.used(OUTPUT) < leaves {
            let units = (1 + random.below(CHARGE)).min(length - meter.used(OUTPUT));
            let within = units.min(ESTIMATE.saturating_sub(meter.used(OUTPUT)));
            let beyond = units - within;
            let asked = now();
            let extended = meter.extend(OUTPUT, units).await;
            if within > 0 {
                log.write(Charged {
                    sent,
                    received,
                    units: within,
                });
            }
            match extended {
                Ok(()) if beyond > 0 => log.write(Charged {
                    sent: asked,
                    received: now(),
                    units: beyond,
                }),
                Ok(()) => {}
                Err(_) => {
                    over = Some((asked, beyond));
                    break;
                }
            }
            sleep(Duration::from_millis(1 + random.below(3))).await;
        }
    }
    if let Some((sent, units)) = over {
        log.write(Charged {
            sent,
            received: now(),
            units,
        });
    }
}

#[test]
#[ignore = "a process of the rig"]
fn a_spender() {
    let Some(plan) = parameters::<Plan>() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let file = File::options()
            .append(true)
            .create(true)
            .open(&plan.log)
            .expect("a file");
        let log = Log(Arc::new(Mutex::new(file)));
        let budgets = budgets(plan.store, &plan.name);
        let tasks = (0..TASKS).map(|task| {
            let user = format!("{}", task % 8);
            let account = budgets.account(&[("user", &user)]);
            tokio::spawn(streams(
                plan.clone(),
                log.clone(),
                account,
                Random(plan.seed << 8 | task),
            ))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("a task ends");
        }
    });
}

/// The share of one process, and of that what it meters.
const SHARE: u64 = 300;
const METERED: u64 = 150;

#[test]
#[ignore = "a process of the rig"]
fn a_holder() {
    let Some(plan) = parameters::<Plan>() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let budgets = hourly(plan.store, &plan.name);
        let account = budgets.account(&[("user", &plan.seed.to_string())]);
        let reserved = account.reserve(Ask::one().cost(OUTPUT, SHARE)).await;
        let mut meter = reserved.expect("there is room");
        meter.extend(OUTPUT, METERED).await.expect("it is reserved");
        // Each step at the key tells what was metered.
        account.usage().await.expect("the store answers");
        std::fs::write(&plan.log, "told").expect("it is written");
        sleep(Duration::from_secs(600)).await;
        drop(meter);
    });
}

const TTL: Duration = Duration::from_secs(1);

fn hourly(store: SocketAddr, name: &str) -> SharedBudgets<Redis> {
    let limit = Limit::cost(OUTPUT, 1_000, Period::Rolling(Duration::from_secs(3_600)));
    SharedBudgets::builder(Key::new(name).expect("a name"))
        .rule(Rule::new("all").limit(limit.clone()))
        .rule(Rule::new("user").per(["user"]).limit(limit))
        .ttl(TTL)
        .spawn(at(store))
        .expect("rules that can be")
}

/// Given three processes that have reserved 300 units each and metered half of them, of which two are killed, then the other halves of those two
/// come back with their lease, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_give_back_with_their_lease_what_they_had_not_metered() {
    let (store, name) = (server(), key().as_str().to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let log = |seed: u64| folder.path().join(format!("{seed}"));
    let start = |seed: u64| {
        let (name, log) = (name.clone(), log(seed));
        let plan = Plan {
            store,
            name,
            log,
            seed,
            end: 0,
        };
        Process::start("budgets::a_holder", &plan).expect("it starts")
    };
    let mut running: Vec<_> = (0..PROCESSES).map(start).collect();
    let patience = now() + nanos(Duration::from_secs(60));
    while !(0..PROCESSES).all(|seed| log(seed).exists()) {
        assert!(now() < patience, "the processes hold their shares");
        sleep(TTL / 20).await;
    }
    let budgets = hourly(store, &name);
    let account = budgets.account(&[("user", "another")]);
    let reserve = async |units| account.reserve(Ask::one().cost(OUTPUT, units)).await;
    assert!(reserve(101).await.is_err(), "all three hold what they have reserved");
    running
        .iter_mut()
        .take(2)
        .for_each(|process| process.kill().expect("it is killed"));
    let back = 100 + 2 * (SHARE - METERED);
    while reserve(back).await.is_err() {
        assert!(reserve(back + 1).await.is_err(), "what was metered stays charged");
        assert!(now() < patience, "the reservations of the dead come back");
        sleep(TTL / 20).await;
    }
    // That one has ended by now, and used nothing.
    assert!(reserve(back + 1).await.is_err(), "the third process holds its share");
}

/// The most units that were certainly charged within one span of the length.
fn most_in_a_span(charged: &[Charged]) -> u64 {
    let length = nanos(LENGTH);
    // One that took longer is within no span. Of the others, those that were sent before a span were also received before its end.
    let within = || {
        charged
            .iter()
            .filter(|charged| charged.received - charged.sent <= length)
    };
    let mut sent: Vec<_> = within().map(|charged| (charged.sent, charged.units)).collect();
    let mut received: Vec<_> = within().map(|charged| (charged.received, charged.units)).collect();
    sent.sort_unstable();
    received.sort_unstable();
    let (mut most, mut inside, mut ended) = (0, 0, received.into_iter().peekable());
    for (start, units) in sent {
        while let Some((_, units)) = ended.next_if(|(received, _)| *received <= start + length) {
            inside += units;
        }
        most = most.max(inside);
        inside -= units;
    }
    most
}

#[test]
fn a_span_counts_what_is_entirely_within_it() {
    let second = nanos(Duration::from_secs(1));
    let charged = |sent: u64, received: u64, units| Charged {
        sent: sent * second,
        received: received * second,
        units,
    };
    let all = [
        charged(0, 0, 1),
        charged(0, 2, 2),
        charged(1, 3, 4),
        charged(1, 4, 8),
        charged(2, 2, 16),
        charged(5, 5, 18),
    ];
    // From 1 to 3 there are 4 and 16; from 0 to 2 there are 1, 2 and 16.
    assert_eq!(most_in_a_span(&all), 20);
    assert_eq!(most_in_a_span(&all[..2]), 3);
    assert_eq!(most_in_a_span(&[]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_keep_one_budget_and_use_it_up() {
    let (store, name) = (server(), key().as_str().to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let (start, mut logs) = (now(), Vec::new());
    let mut process = |seed: u64| {
        let log = folder.path().join(format!("{seed}"));
        logs.push(log.clone());
        let (name, end) = (name.clone(), start + nanos(RUN));
        Process::start(
            "budgets::a_spender",
            &Plan {
                store,
                name,
                log,
                seed,
                end,
            },
        )
        .expect("it starts")
    };
    let mut running: Vec<_> = (0..PROCESSES).map(&mut process).collect();
    // Two are killed in the middle of their streams, and others take their places.
    for (number, after) in [(0, RUN / 3), (1, RUN / 2)] {
        sleep(until(start + nanos(after))).await;
        running[number].kill().expect("it is killed");
        running[number] = process(PROCESSES + number as u64);
    }
    sleep(until(start + nanos(RUN))).await;
    for process in running {
        assert!(process.close().expect("it ends").success());
    }
    let charged: Vec<Charged> = logs.iter().flat_map(|log| Log::read(log)).collect();
    let most = most_in_a_span(&charged);
    // Each running stream may exceed it by its largest charge.
    let bound = LIMIT + PROCESSES * TASKS * CHARGE;
    // After the first span, in which the processes start.
    let (from, to) = (start + nanos(LENGTH), start + nanos(RUN));
    let used: u64 = charged
        .iter()
        .filter(|charged| charged.received > from && charged.sent < to)
        .map(|charged| charged.units)
        .sum();
    let share = used as f64 / (LIMIT as f64 * (RUN - LENGTH).as_secs_f64() / LENGTH.as_secs_f64());
    println!("at most {most} of {LIMIT} in a span, {bound} are allowed; {share:.3} of the budget was used");
    assert!(most <= bound, "{most} units in a span, and {bound} are allowed");
    assert!(share >= 0.95, "{share:.3} of the budget was used");
}

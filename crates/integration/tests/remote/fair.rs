//! Eight processes that want all they can get, of permits, of a rate and of a window: each has an equal part.
//!
//! Slots of Consul are left out: their order is only about that of the requests.

use crate::places::Place;
use crate::rig::instant::{Nanos, nanos, now, until};
use crate::rig::process::{Process, parameters, until_closed};
use crate::store::key;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Key, Remote};

const PROCESSES: usize = 8;
const TASKS: usize = 8;
const TTL: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Kind {
    /// Four permits, held for some milliseconds.
    Permits,
    /// Leased where the store has no rates.
    Rate,
    Leased,
    Window,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    kind: Kind,
    name: String,
    /// Admissions count between these instants.
    counts: (Nanos, Nanos),
    count: PathBuf,
}

/// A process of the rig.
pub(crate) fn takes_part<P: Place>() {
    let plan: Plan = parameters().expect("started by the rig");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let key = Key::new(&*plan.name).expect("a name");
        let rate = || Remote::rate(key.clone(), Quota::per_second(400).burst(80));
        let builder = match plan.kind {
            Kind::Permits => Remote::permits(key.clone(), 4),
            Kind::Rate => rate(),
            Kind::Leased => rate().capacity(),
            Kind::Window => Remote::window(key.clone(), 100, SECOND / 2),
        };
        let remote = builder.ttl(TTL).timeout(SECOND).spawn(P::store());
        let (remote, count) = (Arc::new(remote.expect("a limiter")), Arc::new(AtomicU64::new(0)));
        let (from, end) = plan.counts;
        for _ in 0..TASKS {
            let (remote, count) = (Arc::clone(&remote), Arc::clone(&count));
            tokio::spawn(async move {
                while now() < end {
                    let Ok(permit) = remote.acquire(1).await else { continue };
                    if (from..end).contains(&now()) {
                        // Relaxed: it is read by the task that outlives the others.
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    if matches!(plan.kind, Kind::Permits) {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    drop(permit);
                }
            });
        }
        tokio::time::sleep(until(end)).await;
        std::fs::write(&plan.count, count.load(Ordering::Relaxed).to_string()).expect("a file");
        let closed = tokio::task::spawn_blocking(|| until_closed().join());
        closed.await.expect("it ends").expect("it ends");
        remote.close().await;
    });
}

/// Plays one kind for `span` with processes of the test `entry`.
async fn shares(entry: &str, kind: Kind, span: Duration) {
    let folder = tempfile::tempdir().expect("a folder");
    // A leased rate finds its parts first.
    let settles = match kind {
        Kind::Permits | Kind::Window => SECOND,
        Kind::Rate | Kind::Leased => 2 * TTL,
    };
    let from = now() + nanos(SECOND + settles);
    let name = key().as_str().to_owned();
    let file = |process: usize| folder.path().join(format!("process-{process}"));
    let processes = (0..PROCESSES).map(|process| {
        let plan = Plan {
            kind,
            name: name.clone(),
            counts: (from, from + nanos(span)),
            count: file(process),
        };
        Process::start(entry, &plan).expect("a process")
    });
    let processes: Vec<_> = processes.collect();
    tokio::time::sleep(until(from + nanos(span))).await;
    let mut each = Vec::new();
    for process in 0..PROCESSES {
        let late = now() + nanos(60 * SECOND);
        while std::fs::read_to_string(file(process)).map_or(true, |count| count.is_empty()) {
            assert!(now() < late, "process {process} has no count");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let count = std::fs::read_to_string(file(process)).expect("a count");
        each.push(count.parse::<u64>().expect("a count") as f64);
    }
    for process in processes {
        let ended = tokio::task::spawn_blocking(|| process.close()).await;
        assert!(ended.expect("it ends").expect("it ends").success());
    }
    let (sum, squares) = (
        each.iter().sum::<f64>(),
        each.iter().map(|count| count * count).sum::<f64>(),
    );
    let jain = sum * sum / (PROCESSES as f64 * squares);
    println!(
        "{entry}, {kind:?}, {span:?}: Jain {jain:.4}, {:.0}/s: {each:?}",
        sum / span.as_secs_f64()
    );
    assert!(jain >= 0.95, "{kind:?}: {jain} of {each:?}");
}

/// One at a time: the processes are many.
static ALONE: Mutex<()> = Mutex::new(());

/// Windows, and rates that are asked for call by call, are left to the longer run: their processes differ for some seconds.
pub(crate) fn share_equally(module: &str, has_rates: bool, span: Duration) {
    let (_, module) = module.split_once("::").expect("a module of this binary");
    let entry = &format!("{module}::a_process");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let kinds: &[_] = match has_rates {
            true if span < 60 * SECOND => &[Kind::Permits, Kind::Leased],
            true => &[Kind::Window, Kind::Rate, Kind::Permits, Kind::Leased],
            false => &[Kind::Permits, Kind::Rate],
        };
        for &kind in kinds {
            shares(entry, kind, span).await;
        }
    });
}

macro_rules! fair {
    ($place:ident, $has_rates:expr) => {
        mod fair {
            use std::time::Duration;

            #[test]
            #[ignore = "a process of the rig"]
            fn a_process() {
                crate::fair::takes_part::<super::$place>();
            }

            #[test]
            fn eight_processes_share_equally() {
                crate::fair::share_equally(module_path!(), $has_rates, Duration::from_secs(6));
            }

            #[test]
            #[ignore = "a minute for each kind of limit; ci/deep runs it"]
            fn eight_processes_share_equally_for_a_minute() {
                crate::fair::share_equally(module_path!(), $has_rates, Duration::from_secs(60));
            }
        }
    };
}
pub(crate) use fair;

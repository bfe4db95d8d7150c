//! A pool, of threads or of async tasks, against a sequential reference: after each operation exactly those tasks have started, been refused or
//! ended that the reference says.

use crate::pool::kinds::{self, Handle, Kind, Pool, pool, settle, watched_on, with};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate::pool::{Overflow, Priority, RejectReason, TaskError};
use tollgate::{Ask, ManualClock, Policy, Quota, Semaphore, TokenBucket};

const QUEUE: usize = 6;
const PRIORITIES: [Priority; 3] = [Priority::Low, Priority::Normal, Priority::High];

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A task of a priority, which may have a deadline, or be one of the group.
    Submit {
        priority: usize,
        seconds: Option<u64>,
        in_group: bool,
        /// Units of the gate.
        units: u64,
    },
    /// The task that runs and has started `nth` is released.
    Release {
        nth: usize,
    },
    /// The task that waits and was submitted `nth`, none of the group, is cancelled.
    Cancel {
        nth: usize,
    },
    Resize {
        limit: usize,
    },
    Advance {
        seconds: u64,
    },
}

impl Op {
    pub(crate) fn decode([which, a, b]: [u8; 3]) -> Self {
        let nth = usize::from(a % 8);
        match which % 14 {
            0..6 => Self::Submit {
                priority: usize::from(a % 3),
                seconds: (b & 1 > 0).then_some(u64::from(1 + b / 4 % 3)),
                in_group: b & 2 > 0,
                units: u64::from(1 + b / 16 % 2),
            },
            6..10 => Self::Release { nth },
            10..12 => Self::Cancel { nth },
            12 => Self::Resize {
                limit: usize::from(1 + a % 3),
            },
            _ => Self::Advance {
                seconds: u64::from(1 + a % 3),
            },
        }
    }
}

#[derive(Clone, Debug)]
struct Waits {
    id: usize,
    priority: usize,
    deadline: Option<u64>,
    in_group: bool,
    units: u64,
}

/// The policy that admits each task before it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Gate {
    #[default]
    None,
    /// Permits that a task holds while it runs.
    Permits,
    /// A rate of one a second.
    Rate,
}

impl Gate {
    /// The permits, or the burst.
    const UNITS: u64 = 3;

    fn build(self, kind: Kind, clock: &ManualClock) -> Pool {
        let (max, reject) = (QUEUE, Overflow::Reject);
        match self {
            Self::None => pool!(kind, 2, max_queue(max), overflow(reject), on(clock)),
            Self::Permits => {
                let policy = Policy::builder()
                    .limit(Semaphore::new(Self::UNITS as usize))
                    .on(clock)
                    .build();
                pool!(
                    kind,
                    2,
                    max_queue(max),
                    overflow(reject),
                    on(clock),
                    admit_by(policy.unwrap())
                )
            }
            Self::Rate => {
                let bucket = TokenBucket::new(Quota::per_second(1).burst(Self::UNITS)).on(clock);
                let policy = Policy::new(bucket);
                pool!(kind, 2, max_queue(max), overflow(reject), on(clock), admit_by(policy))
            }
        }
    }
}

/// What a pool does, one step at a time.
#[derive(Default)]
struct Reference {
    limit: usize,
    group_limit: usize,
    gate: Gate,
    /// What the gate can give.
    free: u64,
    now: u64,
    /// In the order of submission.
    waits: Vec<Waits>,
    runs: Vec<Waits>,
    started: Vec<usize>,
    expired: Vec<usize>,
}

impl Reference {
    /// Starts what can start, the highest priority first, and each in order.
    fn settle(&mut self) {
        while self.runs.len() < self.limit {
            let group_is_full = self.runs.iter().filter(|task| task.in_group).count() >= self.group_limit;
            let eligible = (0..self.waits.len()).filter(|&at| !(group_is_full && self.waits[at].in_group));
            let Some(first) = eligible.min_by_key(|&at| (2 - self.waits[at].priority, at)) else {
                return;
            };
            let task = &self.waits[first];
            if task.deadline.is_some_and(|deadline| self.now > deadline) {
                self.expired.push(self.waits.remove(first).id);
                continue;
            }
            if self.gate != Gate::None {
                let Some(left) = self.free.checked_sub(task.units) else {
                    return;
                };
                self.free = left;
            }
            let task = self.waits.remove(first);
            self.started.push(task.id);
            self.runs.push(task);
        }
    }

    fn end(&mut self, nth: usize) -> Waits {
        let task = self.runs.remove(nth % self.runs.len());
        if self.gate == Gate::Permits {
            self.free += task.units;
        }
        task
    }

    fn advance(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1;
            if self.gate == Gate::Rate {
                self.free = Gate::UNITS.min(self.free + 1);
                // A task is admitted at the instant at which the gate has its units, though its worker looks later.
                self.settle();
            }
        }
    }
}

async fn program(kind: Kind, gate: Gate, group_limit: usize, ops: Vec<Op>) {
    let clock = ManualClock::new();
    let pool = gate.build(kind, &clock);
    let mut reference = Reference {
        limit: 2,
        group_limit,
        gate,
        free: Gate::UNITS,
        ..Reference::default()
    };
    let started = Arc::new(Mutex::new(Vec::new()));
    let mut releases = BTreeMap::new();
    let mut handles: BTreeMap<usize, Handle<()>> = BTreeMap::new();
    let mut cancelled = Vec::new();
    // The group is of normal priority and without deadlines: so are its tasks.
    let mut group = pool.group::<(), ()>().limit(group_limit).unwrap();
    for (id, op) in ops.into_iter().enumerate() {
        match op {
            Op::Submit {
                priority,
                seconds,
                in_group,
                units,
            } => {
                let (priority, seconds, units) = if in_group {
                    (1, None, 1)
                } else {
                    (priority, seconds, units)
                };
                // A late task that asks the gate expires when it is admitted, or when its worker looks for another reason.
                let seconds = seconds.filter(|_| gate == Gate::None);
                let (release, released) = oneshot::channel::<()>();
                let log = Arc::clone(&started);
                let task = async move {
                    log.lock().unwrap().push(id);
                    let _ = released.await;
                };
                let submitted = if in_group {
                    let task = async {
                        task.await;
                        Ok(())
                    };
                    group
                        .submit(task)
                        .await
                        .map(|_| None)
                        .map_err(|rejected| rejected.reason)
                } else {
                    let mut submit = with!(pool.priority(PRIORITIES[priority]), ask(Ask::many(units)));
                    if let Some(seconds) = seconds {
                        submit = submit.deadline(Duration::from_secs(seconds));
                    }
                    submit.try_submit(task).map(Some).map_err(|rejected| rejected.reason)
                };
                if reference.waits.len() == QUEUE {
                    assert_eq!(submitted.err(), Some(RejectReason::Full));
                    continue;
                }
                if let Some(handle) = submitted.unwrap() {
                    handles.insert(id, handle);
                }
                releases.insert(id, release);
                let deadline = seconds.map(|seconds| reference.now + seconds);
                reference.waits.push(Waits {
                    id,
                    priority,
                    deadline,
                    in_group,
                    units,
                });
            }
            Op::Release { nth } => {
                if !reference.runs.is_empty() {
                    drop(releases.remove(&reference.end(nth).id));
                }
            }
            Op::Cancel { nth } => {
                let mut single = reference.waits.iter().filter(|task| !task.in_group);
                if let Some(id) = single.nth(nth).map(|task| task.id) {
                    reference.waits.retain(|task| task.id != id);
                    assert!(handles[&id].cancel());
                    cancelled.push(id);
                }
            }
            Op::Resize { limit } => {
                reference.limit = limit;
                pool.set_limit(limit).unwrap();
            }
            Op::Advance { seconds } => {
                reference.advance(seconds);
                clock.advance(Duration::from_secs(seconds));
            }
        }
        reference.settle();
        let mut expected = reference.started.clone();
        expected.sort_unstable();
        let in_order = || {
            let mut started = started.lock().unwrap().clone();
            started.sort_unstable();
            started
        };
        let done = until(kind, || {
            in_order() == expected && reference.expired.iter().all(|id| handles[id].is_finished())
        })
        .await;
        assert!(done, "{:?} have started, and not {expected:?}", in_order());
        // On threads a cancelled task leaves the queue later.
        if kind == Kind::Tasks || cancelled.is_empty() {
            let done = until(kind, || pool.stats().queued == reference.waits.len()).await;
            assert!(done, "{} wait, and not {}", pool.stats().queued, reference.waits.len());
        }
    }
    if kind == Kind::Threads {
        settle().await;
    }
    assert_eq!(
        started.lock().unwrap().len(),
        reference.started.len(),
        "no more have started"
    );
    // What has not started is handed back in the order in which it would have.
    let mut report = pool.shutdown(Duration::ZERO).await;
    assert_eq!(report.left().0, reference.waits.len());
    // One that was released may not have reported its end.
    assert!(report.left().1 >= reference.runs.len());
    drop(releases);
    reference.waits.sort_by_key(|task| 2 - task.priority);
    let single: Vec<_> = reference.waits.iter().map(|task| PRIORITIES[task.priority]).collect();
    let mut listed = Vec::new();
    for _ in 0..report.left().0 {
        let task = report.first();
        listed.push(task.priority());
        assert!(task.run().await);
    }
    assert_eq!(listed, single);
    assert!(report.wait().await);
    let mut all = reference.started.clone();
    all.extend(reference.waits.iter().map(|task| task.id));
    let mut ran = started.lock().unwrap().clone();
    assert_eq!(
        ran[reference.started.len()..],
        all[reference.started.len()..],
        "in the order of the list"
    );
    all.sort_unstable();
    ran.sort_unstable();
    assert_eq!(ran, all);
    for (id, handle) in handles {
        let ended = handle.join().await;
        let as_said = match &ended {
            Ok(()) => all.contains(&id),
            Err(TaskError::Expired) => reference.expired.contains(&id),
            Err(TaskError::Cancelled) => cancelled.contains(&id),
            Err(_) => false,
        };
        assert!(as_said, "task {id} ended as {ended:?}");
    }
    for end in group.join_all().await {
        end.unwrap();
    }
    pool.ends_clean().await;
}

/// Lets others run until something is so. Async tasks run on this thread: they have done what they can after a few rounds.
async fn until(kind: Kind, done: impl Fn() -> bool) -> bool {
    if kind == Kind::Threads {
        kinds::until(done).await;
        return true;
    }
    for round in 0..1_000 {
        // What ended by the operation has been counted by then.
        if round >= 10 && done() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// A pool of a kind, with a group of this limit.
pub(crate) fn run(kind: Kind, gate: Gate, group_limit: usize, ops: Vec<Op>) {
    if kind == Kind::Threads {
        return watched_on(kind, format!("{ops:?}"), move |kind| {
            program(kind, gate, group_limit, ops)
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    // The clock of the runtime runs on once no task can go on.
    let ended = async { tokio::time::timeout(Duration::from_secs(60), program(kind, gate, group_limit, ops)).await };
    runtime.unwrap().block_on(ended).expect("a task that ends");
}

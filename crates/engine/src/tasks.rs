//! Tasks of a tokio runtime as the runners of an engine.

use crate::admission::Admission;
use crate::engine::{Engine, Entry, Inside, Next, Runner, Running, Seat};
use crate::queue::GroupId;
use crate::task::{AsyncJob, TaskError, quietly};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use tokio::task::coop;

/// Polls futures on tasks of a runtime.
pub struct Tasks {
    pub(crate) runtime: tokio::runtime::Handle,
}

type Core = Engine<Tasks>;

impl Runner for Tasks {
    type Job = Box<dyn AsyncJob>;
    const INLINES: bool = false;
    const MAX_LOOKS: usize = usize::MAX;

    fn start(&self, engine: &Arc<Core>) -> bool {
        self.runtime.spawn(work(Worker {
            engine: Arc::clone(engine),
            seat: Seat::of_worker(),
            runs: None,
            exits: false,
        }));
        true
    }

    fn refuse(job: Self::Job, why: TaskError) {
        job.refuse(why);
    }

    fn max_spare(&self) -> usize {
        usize::MAX
    }
}

/// A runner. A runtime that ends drops it before it exits, even before its first poll.
struct Worker {
    engine: Arc<Core>,
    seat: Arc<Seat>,
    /// The group of the task that it runs, and whether that is parked.
    runs: Option<(Option<GroupId>, bool)>,
    exits: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.exits {
            self.engine.lost(&self.seat, self.runs);
        }
    }
}

async fn work(mut worker: Worker) {
    let worker = &mut worker;
    let (engine, seat) = (Arc::clone(&worker.engine), Arc::clone(&worker.seat));
    loop {
        // A task that never waits takes from the budget all the same, so that other tasks of the runtime have their turn.
        coop::consume_budget().await;
        let ended = worker.runs.take().map(|(group, _)| group);
        match engine.next(&seat, ended) {
            Next::Run(entry, group) => run(worker, entry, group, None).await,
            Next::Ask => {
                let mut asking = None;
                let admitted = poll_fn(|cx| engine.poll_admission(&seat, &mut asking, cx)).await;
                if let Some((entry, group, admission)) = admitted {
                    run(worker, entry, group, admission).await;
                }
            }
            Next::Sleep => poll_fn(|cx| seat.poll(cx.waker())).await,
            Next::Exit => {
                worker.exits = true;
                return;
            }
        }
    }
}

async fn run(worker: &mut Worker, entry: Entry<Box<dyn AsyncJob>>, group: Option<GroupId>, admission: Admission) {
    let parked = &mut worker.runs.insert((group, false)).1;
    let task = Running::new(Arc::clone(&worker.engine) as _, group, entry.link, 0);
    let mut job = entry.job;
    poll_fn(|cx| poll(&task, &mut *job, parked, cx)).await;
    drop(job);
    // The legs of the policy run as it is dropped.
    quietly(|| drop(admission));
    task.end();
}

/// Polls the task. A task that is pending while it awaits a handle is parked until it is woken. The last poll need not have polled
/// the handle: a set of futures polls only those that were woken.
fn poll(task: &Arc<Running>, job: &mut dyn AsyncJob, parked: &mut bool, cx: &mut Context<'_>) -> Poll<()> {
    if std::mem::take(parked) {
        task.engine.resume(task.group);
    }
    let inside = Inside::enter(task);
    let polled = job.poll(cx);
    drop(inside);
    // Relaxed: the polls of the task write it, but for a handle that is dropped elsewhere. Then the task lends its slot until it is
    // woken, and only tasks that are awaited use it.
    if polled.is_pending() && task.awaits.load(Ordering::Relaxed) > 0 {
        *parked = task.engine.park(task.group);
    }
    polled
}

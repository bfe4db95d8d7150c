//! Threads as the runners of an engine.

use crate::admission::Admission;
use crate::engine::{Engine, Entry, Inside, Next, Runner, Running, Seat, thread_waker};
use crate::queue::GroupId;
use crate::task::{Job, TaskError, quietly};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

/// Runs closures on threads.
pub struct Threads {
    pub(crate) max_spare: usize,
}

type Core = Engine<Threads>;

impl Runner for Threads {
    type Job = Box<dyn Job>;
    const INLINES: bool = true;
    const MAX_LOOKS: usize = 1;

    fn start(&self, engine: &Arc<Core>) -> bool {
        let engine = Arc::clone(engine);
        let thread = thread::Builder::new().name("worker".into()).stack_size(512 << 10);
        thread.spawn(move || work(&engine)).is_ok()
    }

    fn refuse(job: Self::Job, why: TaskError) {
        job.refuse(why);
    }

    fn max_spare(&self) -> usize {
        self.max_spare
    }

    fn run_inline(_: &Arc<Core>, job: Self::Job, task: &Arc<Running>) {
        let inside = Inside::enter(task);
        job.run();
        drop(inside);
    }
}

fn work(engine: &Arc<Core>) {
    let (seat, mut ended) = (Seat::of_worker(), None);
    loop {
        match engine.next(&seat, ended.take()) {
            Next::Run(entry, group) => {
                run(engine, entry, group, None);
                ended = Some(group);
            }
            Next::Ask => {
                let (waker, mut asking) = (thread_waker(), None);
                let admitted = loop {
                    match engine.poll_admission(&seat, &mut asking, &mut Context::from_waker(&waker)) {
                        Poll::Ready(admitted) => break admitted,
                        Poll::Pending => thread::park(),
                    }
                };
                if let Some((entry, group, admission)) = admitted {
                    run(engine, entry, group, admission);
                    ended = Some(group);
                }
            }
            Next::Sleep => seat.wait(),
            Next::Exit => return,
        }
    }
}

fn run(engine: &Arc<Core>, entry: Entry<Box<dyn Job>>, group: Option<GroupId>, admission: Admission) {
    let task = Running::new(Arc::clone(engine) as _, group, entry.link, 0);
    let inside = Inside::enter(&task);
    entry.job.run();
    drop(inside);
    // The legs of the policy run as it is dropped.
    quietly(|| drop(admission));
    task.end();
}

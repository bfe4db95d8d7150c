//! The runner loop: takes a task, polls it to its end, repeats.

use super::cell::Run;
use super::kind::{Core, Running, Tasks};
use crate::pool::admission::Ticket;
use crate::pool::cell::Ran;
use crate::pool::engine::entry::Entry;
use crate::pool::engine::seat::Seat;
use crate::pool::engine::state::{Counts, Next, State};
use crate::pool::engine::waits::{Inside, PoolId, current};
use crate::pool::hooks::drop_quietly;
use crate::pool::report::Unstarted;
use std::future::poll_fn;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A runner. If it is dropped while `in_order` is false, its runtime dropped it, perhaps before its first poll.
struct Runner {
    core: Arc<Core>,
    seat: Arc<Seat<Running>>,
    runs: Option<Runs>,
    in_order: bool,
}

/// The task that a runner has started, and whose end it has not reported.
#[derive(Default)]
struct Runs {
    ticket: Option<Ticket>,
    is_parked: bool,
    /// Its slot, its membership and its end.
    counts: Counts,
}

impl Drop for Runner {
    fn drop(&mut self) {
        if let Some(task) = self.seat.own.take() {
            task.abort();
            task.record().end();
            drop_quietly(task);
        }
        let mut ended = Counts::default();
        if let Some(runs) = self.runs.take() {
            // The runtime has dropped the task.
            if let Some(ticket) = runs.ticket {
                ticket.finish(Ran::Gone);
            }
            if runs.is_parked {
                self.core.transition(|state, _| state.resume());
            }
            ended = runs.counts;
            if ended.tasks == 0 {
                ended.count(Ran::Gone);
            }
        }
        self.core.left(&self.seat, ended, self.in_order);
    }
}

/// Creates the runner's future. The [`Runner`] exists before the first poll, since the runtime may drop the future unpolled.
pub(super) fn run(core: Arc<Core>, seat: Arc<Seat<Running>>) -> impl Future<Output = ()> + Send {
    work(Runner {
        core,
        seat,
        runs: None,
        in_order: false,
    })
}

async fn work(mut runner: Runner) {
    let runner = &mut runner;
    let (core, seat) = (Arc::clone(&runner.core), Arc::clone(&runner.seat));
    loop {
        let ended = runner.runs.take().map_or(Counts::default(), |runs| runs.counts);
        let started = match core.next(&seat, ended, false, |_| (), |_, _| ()) {
            Next::Run(entry, borrows) => Some((entry, borrows, None)),
            Next::Ask => {
                let mut asking = None;
                let asked = poll_fn(|cx| core.poll_admission(&seat, &mut asking, cx)).await;
                asked.map(|(entry, borrows, ticket, held)| {
                    entry.task().inspect(|task| task.record().holds(held));
                    (entry, borrows, Some(ticket))
                })
            }
            Next::Sleep => {
                poll_fn(|cx| seat.poll_called(cx)).await;
                None
            }
            Next::Again => None,
            Next::Exit => break,
        };
        if let Some((entry, borrows, ticket)) = started {
            runner.run(entry, borrows, ticket).await;
        }
        // Futures that are ready at once, or refused, must not starve the runtime's other tasks.
        tokio::task::coop::consume_budget().await;
    }
    runner.in_order = true;
}

impl Runner {
    async fn run(&mut self, entry: Entry<Tasks>, borrows: bool, ticket: Option<Ticket>) {
        let runs = self.runs.insert(Runs {
            ticket,
            ..Runs::default()
        });
        runs.counts.slot = Some(borrows);
        runs.counts.member = entry.member().map(Arc::clone);
        let core = &self.core;
        core.give_back(entry.weight());
        let mut ran = Ran::Gone;
        if let Some(task) = self.seat.own.get() {
            ran = poll_fn(|cx| poll(core, &task, &mut runs.is_parked, cx)).await;
            task.record().end();
        }
        if let Some(ticket) = runs.ticket.take() {
            ticket.finish(ran);
        }
        runs.counts.count(ran);
        // If the handle is gone, this drops the result.
        drop_quietly((self.seat.own.take(), entry));
    }
}

/// Polls the task. Parks a task that is pending and awaits a handle until it is woken, even if its last poll did not poll that
/// handle: a set of futures polls only those that were woken.
fn poll(core: &Arc<Core>, task: &Arc<dyn Run>, is_parked: &mut bool, cx: &mut Context<'_>) -> Poll<Ran> {
    if std::mem::take(is_parked) {
        core.transition(|state, _| state.resume());
    }
    let inside = Inside::enter(Arc::clone(task) as _, PoolId::of(&**core));
    let polled = task.poll_run(&|payload| core.orphan(payload), cx);
    drop(inside);
    if polled.is_pending() && task.record().awaits() {
        *is_parked = core.transition(State::park);
    }
    polled
}

impl Unstarted<Tasks> {
    /// Runs the task in this future. Its handle gets the result. Returns false when the task was cancelled.
    ///
    /// # Cancel safety
    /// Dropping this future drops the task.
    ///
    /// # Panics
    /// When the task panics and its handle is gone, or it never had one.
    pub async fn run(self) -> bool {
        let entry = self.take();
        let Some(task) = entry.as_ref().and_then(Entry::task).filter(|task| task.start()) else {
            return false;
        };
        // The abort has no effect once the task has ended.
        let task = AbortOnDrop(Arc::clone(task));
        drop(entry);
        let orphan = |payload| resume_unwind(payload);
        let ran = poll_fn(|cx| {
            // Inside another task, its waits count as waits of that task.
            let _inside = current()
                .is_none()
                .then(|| Inside::enter_aside(Arc::clone(&task.0) as _));
            task.0.poll_run(&orphan, cx)
        });
        ran.await != Ran::Gone
    }
}

struct AbortOnDrop(Arc<dyn Run>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
        self.0.record().end();
    }
}

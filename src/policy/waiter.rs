//! One waiter: the state machine of its wait, driven as a future or by parking a thread.

use super::QUEUE;
use super::dispatcher::PolicyCore;
use super::queue::{WaitEnd, WaiterKey};
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::time::ClockReading;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// One wait for one admission. Dropping it leaves the queue and loses nothing.
pub(super) struct Waiter<'a, L: Limiter + 'static> {
    core: &'a Arc<PolicyCore<L>>,
    ask: Ask,
    patience: Option<Duration>,
    place: Option<WaiterKey>,
}

/// The result of one step of a wait.
pub(super) enum Progress<'a> {
    /// When admitted, the ticket is in the place of the caller: a large one is not moved.
    Done(Result<(), Refusal<'a>>),
    /// Progress again when woken.
    Pending,
}

impl<'a, L: Limiter + 'static> Waiter<'a, L> {
    pub(super) fn new(core: &'a Arc<PolicyCore<L>>, ask: Ask, patience: Option<Duration>) -> Self {
        Self {
            core,
            ask,
            patience,
            place: None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        if self.place.is_some() {
            return self.step_queued(waker, ticket);
        }
        let core = self.core;
        if core.is_idle() {
            return match admit_in(&core.limiter, &self.ask, ticket) {
                Ok(()) => Progress::Done(Ok(())),
                Err(refusal) if matches!(refusal.wait(), Wait::Never) => Progress::Done(Err(refusal)),
                Err(refusal) => self.join(Some(refusal), waker, ticket),
            };
        }
        self.step_behind_others(waker, ticket)
    }

    #[cold]
    fn step_behind_others(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let core = self.core;
        if core.has_before() {
            return self.join(None, waker, ticket);
        }
        if core.was_late() {
            return match core.admit_after_late(&self.ask) {
                Some(given) => self.admitted(given, ticket),
                None => self.join(None, waker, ticket),
            };
        }
        let reading = ClockReading::new();
        match core.reserve_past_waiters(Demand::new(&self.ask, &reading), ticket) {
            Ok(()) => {
                if let Some(ticket) = ticket {
                    core.limiter.commit(ticket, &reading);
                }
                Progress::Done(Ok(()))
            }
            Err(refusal) if matches!(refusal.wait(), Wait::Never) => Progress::Done(Err(refusal)),
            Err(refusal) => self.join(Some(refusal), waker, ticket),
        }
    }

    fn admitted(&self, given: L::Ticket, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        self.core.limiter.commit(ticket.insert(given), &ClockReading::new());
        Progress::Done(Ok(()))
    }

    /// Joins the queue, or fails at once when that cannot end in time. `refusal` is that of the legs, if they were asked.
    #[cold]
    fn join(&mut self, refusal: Option<Refusal<'a>>, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let core = self.core;
        if core.settings.misfit {
            let misfit = Refusal::new(Reason::Misconfigured, QUEUE, self.ask.count(), Wait::Never);
            return Progress::Done(Err(misfit));
        }
        let now = core.clock.now();
        let (ready, changes) = core.ready_behind_queue(&self.ask, now);
        let patience = self.patience.map(|patience| core.clock.ticks_of(patience));
        let patience = match (patience, core.settings.max_wait()) {
            (Some(own), Some(max)) => Some(own.min(max)),
            (own, max) => own.or(max),
        };
        let deadline = patience.map(|ticks| now.after_ticks(ticks));
        if let Some(refusal) = core.refuses(&self.ask, &ready, now, deadline, refusal) {
            return Progress::Done(Err(refusal));
        }
        let due = ready.not_before();
        match core.join(self.ask, now, deadline, (due, ready.is_raise(), changes)) {
            Some((key, evicted)) => {
                // First of all the key has an owner: a waker that panics leaves nothing behind.
                self.place = Some(key);
                PolicyCore::<L>::wake_evicted(evicted);
            }
            None => {
                let full = match refusal {
                    Some(refusal) => refusal.with_reason(Reason::QueueFull),
                    None => core.full(&self.ask, &ready, now),
                };
                return Progress::Done(Err(full));
            }
        }
        self.step_queued(waker, ticket)
    }

    fn step_queued(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let Some(key) = self.place else {
            unreachable!("called with a place in the queue");
        };
        match self.core.look(key, waker) {
            None => Progress::Pending,
            Some(ended) => {
                self.place = None;
                match ended {
                    WaitEnd::Admitted(given) => {
                        self.core.note_lateness(self.core.clock.now());
                        self.admitted(given, ticket)
                    }
                    WaitEnd::Evicted => Progress::Done(Err(self.core.why_evicted(&self.ask))),
                    WaitEnd::Expired(behind) => Progress::Done(Err(self.core.why_late(&self.ask, &behind))),
                    WaitEnd::Refused(behind) => Progress::Done(self.core.refuse(&self.ask, &behind, ticket)),
                    WaitEnd::Panicked(panic) => resume_unwind(panic),
                }
            }
        }
    }
}

impl<L: Limiter + 'static> Drop for Waiter<'_, L> {
    fn drop(&mut self) {
        if let Some(key) = self.place.take() {
            self.core.leave(key);
        }
    }
}

/// Drives a wait as a future.
pub(super) struct WaiterFuture<'a, L: Limiter + 'static>(Waiter<'a, L>);

impl<'a, L: Limiter + 'static> WaiterFuture<'a, L> {
    pub(super) fn new(waiting: Waiter<'a, L>) -> Self {
        Self(waiting)
    }

    #[inline]
    pub(super) fn poll_ticket(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Poll<Result<(), Refusal<'a>>> {
        match self.0.step(cx.waker(), ticket) {
            Progress::Done(result) => Poll::Ready(result),
            Progress::Pending => Poll::Pending,
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Drives a wait by parking this thread.
pub(super) fn block<'a, L: Limiter + 'static>(
    mut waiting: Waiter<'a, L>,
    ticket: &mut Option<L::Ticket>,
) -> Result<(), Refusal<'a>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match waiting.step(&waker, ticket) {
            Progress::Done(result) => return result,
            Progress::Pending => thread::park(),
        }
    }
}

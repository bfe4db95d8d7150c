//! Waiting for admission: the state machine of one wait, and its async and blocking faces.

use super::LINE;
use super::line::{Ended, Key};
use super::pump::Core;
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, admit_in};
use crate::core::refusal::{Due, Reason, Refusal, Wait};
use crate::time::ClockReading;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// One wait for one admission, apart from who drives it. Dropping it leaves the line and loses nothing.
pub(super) struct Waiting<'a, L: Limiter + 'static> {
    core: &'a Arc<Core<L>>,
    ask: Ask,
    patience: Option<Duration>,
    place: Option<Key>,
}

/// What one step of a wait comes to.
pub(super) enum Step<'a> {
    /// When admitted, the ticket is where it was wanted: a large one is not moved about.
    Done(Result<(), Refusal<'a>>),
    /// Step again when woken.
    Pending,
}

impl<'a, L: Limiter + 'static> Waiting<'a, L> {
    pub(super) fn new(core: &'a Arc<Core<L>>, ask: Ask, patience: Option<Duration>) -> Self {
        Self {
            core,
            ask,
            patience,
            place: None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Step<'a> {
        if self.place.is_some() {
            return self.step_in_line(waker, ticket);
        }
        let core = self.core;
        if core.is_idle() {
            return match admit_in(&core.limiter, &self.ask, ticket) {
                Ok(()) => Step::Done(Ok(())),
                Err(refusal) if matches!(refusal.wait(), Wait::Never) => Step::Done(Err(refusal)),
                Err(refusal) => self.join(Some(refusal), waker, ticket),
            };
        }
        self.step_behind_others(waker, ticket)
    }

    #[cold]
    fn step_behind_others(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Step<'a> {
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
                Step::Done(Ok(()))
            }
            Err(refusal) if matches!(refusal.wait(), Wait::Never) => Step::Done(Err(refusal)),
            Err(refusal) => self.join(Some(refusal), waker, ticket),
        }
    }

    fn admitted(&self, given: L::Ticket, ticket: &mut Option<L::Ticket>) -> Step<'a> {
        self.core.limiter.commit(ticket.insert(given), &ClockReading::new());
        Step::Done(Ok(()))
    }

    /// Joins the line, or fails at once when that cannot end in time. `refusal` is what the legs said, if asked.
    #[cold]
    fn join(&mut self, refusal: Option<Refusal<'a>>, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Step<'a> {
        let core = self.core;
        if core.settings.misfit {
            let misfit = Refusal::new(Reason::Misconfigured, LINE, self.ask.count(), Wait::Never);
            return Step::Done(Err(misfit));
        }
        let now = core.clock.now();
        let (ready, changes) = core.ready_behind_line(&self.ask, now);
        let patience = self.patience.map(|patience| core.clock.ticks_of(patience));
        let patience = match (patience, core.settings.max_wait()) {
            (Some(own), Some(max)) => Some(own.min(max)),
            (own, max) => own.or(max),
        };
        let deadline = patience.map(|ticks| now.after_ticks(ticks));
        if let Some(refusal) = core.refuses(&self.ask, &ready, now, deadline, refusal) {
            return Step::Done(Err(refusal));
        }
        let due = ready.not_before();
        match core.join(self.ask, now, deadline, (due, ready.is_raise(), changes)) {
            Some((key, evicted)) => {
                // First of all the place has an owner: a waker that panics leaves nothing behind.
                self.place = Some(key);
                Core::<L>::wake_evicted(evicted);
            }
            None => {
                let leg = if ready.leg().is_empty() { LINE } else { ready.leg() };
                let full = match refusal {
                    Some(refusal) => refusal.with_reason(Reason::QueueFull),
                    None => {
                        let known = due.filter(|_| !ready.is_event());
                        let wait = known.map_or(Wait::Event, |at| Wait::Until(Due::at(&core.clock, now, at)));
                        Refusal::new(Reason::QueueFull, leg, self.ask.count(), wait)
                    }
                };
                return Step::Done(Err(full));
            }
        }
        self.step_in_line(waker, ticket)
    }

    fn step_in_line(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Step<'a> {
        let Some(key) = self.place else {
            unreachable!("called with a place in line");
        };
        match self.core.look(key, waker) {
            None => Step::Pending,
            Some(ended) => {
                self.place = None;
                match ended {
                    Ended::Admitted(given) => {
                        self.core.note_lateness(self.core.clock.now());
                        self.admitted(given, ticket)
                    }
                    Ended::Evicted => {
                        let refusal = Refusal::new(Reason::QueueFull, LINE, self.ask.count(), Wait::Event);
                        Step::Done(Err(refusal))
                    }
                    Ended::Expired(behind) => Step::Done(Err(self.core.why_late(&self.ask, &behind))),
                    Ended::Hopeless(behind) => Step::Done(self.core.refuse(&self.ask, &behind, ticket)),
                    Ended::Panicked(panic) => resume_unwind(panic),
                }
            }
        }
    }
}

impl<L: Limiter + 'static> Drop for Waiting<'_, L> {
    fn drop(&mut self) {
        if let Some(key) = self.place.take() {
            self.core.leave(key);
        }
    }
}

/// Drives a wait as a future.
pub(super) struct Driven<'a, L: Limiter + 'static>(Waiting<'a, L>);

impl<'a, L: Limiter + 'static> Driven<'a, L> {
    pub(super) fn new(waiting: Waiting<'a, L>) -> Self {
        Self(waiting)
    }

    #[inline]
    pub(super) fn poll_ticket(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Poll<Result<(), Refusal<'a>>> {
        match self.0.step(cx.waker(), ticket) {
            Step::Done(result) => Poll::Ready(result),
            Step::Pending => Poll::Pending,
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
    mut waiting: Waiting<'a, L>,
    ticket: &mut Option<L::Ticket>,
) -> Result<(), Refusal<'a>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match waiting.step(&waker, ticket) {
            Step::Done(result) => return result,
            Step::Pending => thread::park(),
        }
    }
}

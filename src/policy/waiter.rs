//! One waiter: the state machine of its wait, driven as a future or by parking a thread.

use super::QUEUE;
use super::dispatcher::PolicyCore;
use super::policy::Policy;
use super::queue::{WaitEnd, WaiterKey};
use crate::core::ask::{Ask, Demand};
use crate::core::limiter::{Limiter, admit_as, admit_in};
use crate::core::permit::Permit;
use crate::core::refusal::{Reason, Refusal, Wait};
use crate::sync::park::block_on;
use crate::time::ClockReading;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// One wait for one admission. Dropping it leaves the queue and loses nothing.
pub(super) struct Waiter<'a, L: Limiter + 'static> {
    policy: &'a Policy<L>,
    ask: Ask,
    patience: Option<Duration>,
    place: Option<WaiterKey>,
}

/// The result of one step of a wait. When admitted, the ticket is in the place of the caller: a large one is not moved.
pub(super) type Progress<'a> = Poll<Result<(), Refusal<'a>>>;

impl<'a, L: Limiter + 'static> Waiter<'a, L> {
    #[inline(always)]
    pub(super) fn new(policy: &'a Policy<L>, ask: Ask, patience: Option<Duration>) -> Self {
        Self {
            policy,
            ask,
            patience,
            place: None,
        }
    }

    #[inline(always)]
    fn core(&self) -> &'a Arc<PolicyCore<L>> {
        self.policy.core()
    }

    fn step(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        if self.place.is_some() {
            return self.step_queued(waker, ticket);
        }
        let core = self.core();
        if core.is_idle() {
            return match admit_in(&core.limiter, &self.ask, ticket) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(refusal) => self.refused(refusal, waker, ticket),
            };
        }
        self.step_behind_others(waker, ticket)
    }

    /// The legs have refused: joins the queue, unless no wait can help.
    #[cold]
    fn refused(&mut self, refusal: Refusal<'a>, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        match refusal.wait() {
            Wait::Never => Poll::Ready(Err(refusal)),
            _ => self.join(Some(refusal), waker, ticket),
        }
    }

    #[cold]
    fn step_behind_others(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let core = self.core();
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
                Poll::Ready(Ok(()))
            }
            Err(refusal) => self.refused(refusal, waker, ticket),
        }
    }

    fn admitted(&self, given: L::Ticket, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        self.core().limiter.commit(ticket.insert(given), &ClockReading::new());
        Poll::Ready(Ok(()))
    }

    /// Joins the queue, or fails at once when that cannot end in time. `refusal` is that of the legs, if they were asked.
    #[cold]
    fn join(&mut self, refusal: Option<Refusal<'a>>, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let core = self.core();
        if core.settings.misfit {
            let misfit = Refusal::new(Reason::Misconfigured, QUEUE, self.ask.count(), Wait::Never);
            return Poll::Ready(Err(misfit));
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
            return Poll::Ready(Err(refusal));
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
                return Poll::Ready(Err(full));
            }
        }
        self.step_queued(waker, ticket)
    }

    fn step_queued(&mut self, waker: &Waker, ticket: &mut Option<L::Ticket>) -> Progress<'a> {
        let Some(key) = self.place else {
            unreachable!("called with a place in the queue");
        };
        match self.core().look(key, waker) {
            None => Poll::Pending,
            Some(ended) => {
                self.place = None;
                match ended {
                    WaitEnd::Admitted(given) => {
                        self.core().note_lateness(self.core().clock.now());
                        self.admitted(given, ticket)
                    }
                    WaitEnd::Evicted => Poll::Ready(Err(self.core().why_evicted(&self.ask))),
                    WaitEnd::Expired(behind) => Poll::Ready(Err(self.core().why_late(&self.ask, &behind))),
                    WaitEnd::Refused(behind) => Poll::Ready(self.core().refuse(&self.ask, &behind, ticket)),
                    WaitEnd::Panicked(panic) => resume_unwind(panic),
                }
            }
        }
    }
}

impl<L: Limiter + 'static> Drop for Waiter<'_, L> {
    fn drop(&mut self) {
        if let Some(key) = self.place.take() {
            self.core().leave(key);
        }
    }
}

/// One wait as a future.
#[must_use = "futures do nothing unless polled"]
pub(super) struct Admit<'a, L: Limiter + 'static> {
    waiter: Waiter<'a, L>,
    ended: bool,
}

impl<'a, L: Limiter + 'static> Admit<'a, L> {
    #[inline(always)]
    pub(super) fn new(policy: &'a Policy<L>, ask: Ask, patience: Option<Duration>) -> Self {
        Self {
            waiter: Waiter::new(policy, ask, patience),
            ended: false,
        }
    }

    /// One step, after the `refusal` of the legs if they were asked. Without a place and a refusal, others are before it.
    #[cold]
    #[inline(never)]
    fn step(
        &mut self,
        refusal: Option<Refusal<'a>>,
        cx: &mut Context<'_>,
        ticket: &mut Option<L::Ticket>,
    ) -> Progress<'a> {
        assert!(!self.ended, "a future is not polled after its end");
        let (waiter, waker) = (&mut self.waiter, cx.waker());
        // It owns the ticket while the legs commit it, which may panic.
        let mut permit = Permit::before(waiter.policy);
        let progress = match refusal {
            Some(refusal) => waiter.refused(refusal, waker, permit.ticket_mut()),
            None if waiter.place.is_none() => waiter.step_behind_others(waker, permit.ticket_mut()),
            None => waiter.step_queued(waker, permit.ticket_mut()),
        };
        self.ended = matches!(progress, Poll::Ready(_));
        *ticket = permit.ticket_mut().take();
        progress
    }
}

impl<'a, L: Limiter + 'static> Future for Admit<'a, L> {
    type Output = Result<Permit<&'a Policy<L>>, Refusal<'a>>;

    /// An admission on the spot is a try: it needs no place in the queue, and its ticket does not pass through memory, which
    /// would be most of its cost.
    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (policy, ask) = (this.waiter.policy, this.waiter.ask);
        let is_new = !this.ended && this.waiter.place.is_none();
        let refusal = match is_new && policy.core().is_idle() {
            true => match admit_as(policy.limiter(), policy, &ask) {
                Ok(permit) => {
                    this.ended = true;
                    return Poll::Ready(Ok(permit));
                }
                Err(refusal) => Some(refusal),
            },
            false => None,
        };
        let mut ticket = None;
        let step = this.step(refusal, cx, &mut ticket);
        step.map_ok(|()| Permit::with(policy, ticket))
    }
}

/// Drives a wait by parking this thread.
pub(super) fn block<'a, L: Limiter + 'static>(
    mut waiting: Waiter<'a, L>,
    ticket: &mut Option<L::Ticket>,
) -> Result<(), Refusal<'a>> {
    block_on(|waker| waiting.step(waker, ticket))
}

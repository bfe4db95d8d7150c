//! A submission that finds no room: what becomes of its task, and what a submitter needs who runs it.

use super::cell::Ran;
use super::core::Core;
use super::error::{TaskError, Turned};
use super::face::Pool;
use super::gate::{Admitted, Waiter, finish};
use super::kin::Standing;
use super::overflow::Crowded;
use super::park::block_on;
use super::passage::{self, Inside, Passage, is_admitted};
use super::wishes::Submit;
use super::worker::{Guest, standing};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

pub(super) type Verdict<'p> = super::overflow::Verdict<Passing<'p>>;

/// What a submitter holds that runs its task itself.
pub(super) struct Passing<'p> {
    guest: Option<Guest<'p>>,
    admitted: Admitted,
}

impl Passing<'_> {
    pub(super) fn run(self, core: &Arc<Core<'_>>, task: impl FnOnce() -> Ran) {
        let inside = Inside::enter(core.kin, &self.admitted);
        let ran = task();
        drop(inside);
        drop(self.guest);
        finish(self.admitted, ran);
        core.ran_by_caller(ran);
    }
}

/// How long a submitter waits for room, where the pool's overflow says that it waits.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

impl<'p, 'j> Submit<'p, Pool<'j>> {
    /// What becomes of a task that has been turned away.
    #[cold]
    pub(super) fn let_in(&self, turned: Turned, patience: Patience) -> Result<Verdict<'p>, Turned> {
        let (core, weight) = (self.core(), self.spec.weight);
        // Workers may owe places.
        let _pressing = core.press();
        let by_caller = match self.judge(turned)? {
            Verdict::Wait => false,
            Verdict::Caller => true,
            verdict => return Ok(verdict),
        };
        let patience = match patience {
            Patience::None if by_caller => return self.pass_now().map(Verdict::Here),
            Patience::None => return Err(Turned::Full),
            Patience::For(patience) => Some(patience),
            Patience::Endless => None,
        };
        if !by_caller && standing(core) == Standing::Stranger && !is_admitted(core.kin) {
            return core.room.take_blocking(weight, patience).map(|()| Verdict::In);
        }
        let mut verdict = pin!(self.room_or_passage(by_caller));
        let poll = |waker: &Waker| verdict.as_mut().poll(&mut Context::from_waker(waker));
        block_on(patience, poll).unwrap_or(Err(Turned::TimedOut))
    }

    fn judge(&self, turned: Turned) -> Result<Verdict<'p>, Turned> {
        self.core().sweep();
        self.core().judge(self.spec.weight, turned)
    }

    fn waiter(&self) -> Waiter {
        Waiter {
            is_admitted: is_admitted(self.core().kin),
        }
    }

    /// For a submitter that runs the task itself, if it need not wait for that.
    fn pass_now(&self) -> Result<Passing<'p>, Turned> {
        let admitted = match &self.core().settings.gate {
            Some(gate) if !seeded!("pool_passes_by_the_policy") => gate.try_admit(self.spec.ask, self.waiter()),
            _ => Ok(None),
        };
        let turned = |rejection| passage::turned(TaskError::Refused(rejection));
        Ok(Passing {
            guest: None,
            admitted: admitted.map_err(turned)?,
        })
    }

    /// Waits for room, or until the submitter may run the task itself: it is to be admitted, and whoever works for the
    /// family needs a slot. Were that one to wait for room alone, nobody might make it.
    async fn room_or_passage(self, by_caller: bool) -> Result<Verdict<'p>, Turned> {
        let core = self.core();
        let mut room = pin!(core.room.take(self.spec.weight));
        let mut passage = Passage::default();
        poll_fn(|cx| {
            let guest = if by_caller {
                None
            } else {
                let guest = Guest::enter(core, cx.waker());
                if guest.is_none() {
                    passage.leave();
                    return room.as_mut().poll(cx).map_ok(|()| Verdict::In);
                }
                guest
            };
            let gate = core.settings.gate.as_ref();
            match passage.poll(gate, || self.spec.ask, || self.waiter(), cx.waker()) {
                Poll::Ready(Ok(admitted)) => Poll::Ready(Ok(Verdict::Here(Passing { guest, admitted }))),
                Poll::Ready(Err(why)) => Poll::Ready(Err(passage::turned(why))),
                Poll::Pending => {
                    // Without the slot: whoever has one may make room meanwhile.
                    drop(guest);
                    room.as_mut().poll(cx).map_ok(|()| Verdict::In)
                }
            }
        })
        .await
    }

    /// As [`let_in`](Self::let_in), without blocking the thread.
    pub(super) async fn let_in_async(self, turned: Turned) -> Result<Verdict<'p>, Turned> {
        let _pressing = self.core().press();
        match self.judge(turned)? {
            Verdict::Wait => self.room_or_passage(false).await,
            Verdict::Caller => self.room_or_passage(true).await,
            verdict => Ok(verdict),
        }
    }
}

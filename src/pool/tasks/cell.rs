//! A future and its result: what the queue holds of it, whoever polls it, and its handle.
//!
//! ```text
//!  Queued --claim--> Resting <--> Polled --ready--> Done --take--> Taken
//!    |                 |            |                ^
//!    `--refuse---------+--abort-----+--(next)--------'
//! ```
//! What is set aside stands where it was queued, for one alone to be claimed.
//! Whoever takes the future out of it, under the lock, polls or drops it outside.

use super::polled::inside;
use super::turn::OwnTurn;
use crate::pool::cell::{Await, Cell, Queued, Ran, Stage};
use crate::pool::error::TaskError;
use crate::pool::gate::{Admitted, finish};
use crate::pool::hooks::{Payload, drop_quietly, wake};
use crate::pool::kin::Kin;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// For which pool a task is polled, and who is told of a panic for which nobody will ask.
#[derive(Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) pool: Kin,
    pub(super) orphan: &'a dyn Fn(Payload),
}

/// A future as queue and runners see it.
pub(super) trait Run: Queued {
    /// Takes it for whoever polls it from now on, with what it is admitted by. False when somebody has. It runs nothing of
    /// a user's.
    fn claim(&self, admitted: &mut Admitted) -> bool;
    /// The same for whoever polls it at once: it has started, and an abort comes after that poll.
    fn claim_to_poll(&self, admitted: &mut Admitted) -> bool;
    /// The same for whoever has set it aside.
    fn claim_aside(&self) -> bool;
    /// Polls it, once it has been claimed.
    fn poll_run(&self, here: Here<'_>, cx: &mut Context<'_>) -> Poll<Ran>;
    /// Ends it, whether it has started or not: for this reason, if it has never been polled. False when it had ended.
    fn abort(&self, queued: TaskError) -> bool;
    /// Whoever has claimed it polls it no more: it is to be claimed again, and so is what it runs in passing.
    fn leave(&self);
    /// True while it has been left, and nobody has claimed it.
    fn is_left(&self) -> bool;
    /// True while it is queued, or has been left.
    fn is_claimable(&self) -> bool;
    /// As [`claim`](Self::claim), for one that has been left.
    fn claim_left(&self) -> bool;
    /// Has its handle polled, if anybody waits.
    fn call(&self);
}

/// A future as its handle sees it.
pub(super) trait Job<T>: Run + Await<T> {}
impl<C: Run + Await<T>, T> Job<T> for C {}

/// A future that has started.
pub(super) enum Progress<Fut> {
    Resting(Rest<Fut>),
    /// It is in the hands of whoever polls it, who is to end it if there is a reason.
    Polled(Option<TaskError>),
}

impl<Fut> Default for Progress<Fut> {
    fn default() -> Self {
        Self::Polled(None)
    }
}

pub(super) struct Rest<Fut> {
    future: Pin<Box<Fut>>,
    /// It has been polled.
    begun: bool,
    /// It is about to be polled, and then to be ended if there is a reason.
    starting: Option<Option<TaskError>>,
    /// Under which it runs, whoever polls it.
    admitted: Admitted,
    /// Nobody polls it: whoever claims it does.
    left: bool,
    /// Whoever polls it, to be told when it is aborted.
    poller: Option<Waker>,
    turn: Option<OwnTurn>,
}

impl<Fut, T> Cell<Fut, Progress<Fut>, T> {
    fn claimed(future: Fut, admitted: Admitted) -> Stage<Fut, Progress<Fut>, T> {
        Stage::Started(Progress::Resting(Rest {
            future: Box::pin(future),
            begun: false,
            starting: None,
            admitted,
            left: false,
            poller: None,
            turn: None,
        }))
    }

    fn take_up(&self) -> Option<Rest<Fut>> {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(Progress::default())) {
            Stage::Started(Progress::Resting(mut rest)) => {
                if let Some(why) = rest.starting.take() {
                    inner.stage = Stage::Started(Progress::Polled(why));
                }
                Some(rest)
            }
            other => {
                inner.stage = other;
                None
            }
        }
    }

    /// True unless the task has been aborted meanwhile: then it has ended.
    fn lay_down(&self, rest: Rest<Fut>) -> bool {
        let why = {
            let mut inner = self.lock();
            match &mut inner.stage {
                Stage::Started(Progress::Polled(why)) if why.is_some() => why.take(),
                stage => {
                    *stage = Stage::Started(Progress::Resting(rest));
                    return true;
                }
            }
        };
        self.end_started(rest, why.unwrap_or(TaskError::Aborted));
        false
    }

    /// Ends it: for this reason, if it has not been polled.
    fn end_started(&self, rest: Rest<Fut>, queued: TaskError) {
        let why = if rest.begun { TaskError::Aborted } else { queued };
        self.end(rest, why);
    }

    /// Drops the future, or whatever is left of it, and tells the handle why.
    fn end<F>(&self, future: F, why: TaskError) {
        drop_quietly(future);
        drop_quietly(self.complete(Err(why)));
    }
}

impl<Fut, T> Run for Cell<Fut, Progress<Fut>, T>
where
    Fut: Future<Output = T> + Send,
    T: Send,
{
    fn claim(&self, admitted: &mut Admitted) -> bool {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(future) => {
                inner.stage = Self::claimed(future, admitted.take());
                true
            }
            other => {
                inner.stage = other;
                false
            }
        }
    }

    fn claim_to_poll(&self, admitted: &mut Admitted) -> bool {
        let claimed = self.claim(admitted);
        if let Stage::Started(Progress::Resting(rest)) = &mut self.lock().stage
            && claimed
            && !seeded!("tasks_are_aborted_before_they_begin")
        {
            rest.starting = Some(None);
        }
        claimed
    }

    fn claim_aside(&self) -> bool {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Taken) {
            Stage::Queued(future) | Stage::Aside(future) => {
                inner.stage = Self::claimed(future, None);
                true
            }
            other => {
                inner.stage = other;
                false
            }
        }
    }

    fn poll_run(&self, here: Here<'_>, cx: &mut Context<'_>) -> Poll<Ran> {
        // None: it was aborted.
        let Some(mut rest) = self.take_up() else {
            return Poll::Ready(Ran::Gone);
        };
        rest.begun = true;
        let future = rest.future.as_mut();
        let poll = |cx: &mut Context<'_>| catch_unwind(AssertUnwindSafe(|| future.poll(cx)));
        let (result, ran) = match inside(here.pool, rest.admitted.is_some(), &mut rest.turn, cx, poll) {
            Ok(Poll::Pending) => {
                let known = rest.poller.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
                let old = (!known).then(|| rest.poller.replace(cx.waker().clone()));
                let rests = self.lay_down(rest);
                drop(old);
                return if rests { Poll::Pending } else { Poll::Ready(Ran::Gone) };
            }
            Ok(Poll::Ready(value)) => (Ok(value), Ran::Done),
            Err(payload) => (Err(TaskError::Panicked(payload)), Ran::Panicked),
        };
        let admitted = rest.admitted.take();
        drop_quietly(rest);
        if let Some(payload) = self.complete(result) {
            (here.orphan)(payload);
        }
        finish(admitted, ran);
        Poll::Ready(ran)
    }

    fn abort(&self, queued: TaskError) -> bool {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.stage, Stage::Started(Progress::default())) {
            Stage::Queued(future) | Stage::Aside(future) => {
                drop(inner);
                self.end(future, queued);
                true
            }
            Stage::Started(Progress::Resting(mut rest)) if rest.starting.is_some() => {
                rest.starting = Some(Some(queued));
                inner.stage = Stage::Started(Progress::Resting(rest));
                true
            }
            Stage::Started(Progress::Resting(mut rest)) => {
                drop(inner);
                let poller = rest.poller.take();
                self.end_started(rest, queued);
                wake(poller);
                true
            }
            // Whoever polls it sees this when the future is pending; one that is ready has its result.
            Stage::Started(Progress::Polled(_)) => {
                inner.stage = Stage::Started(Progress::Polled(Some(queued)));
                true
            }
            ended => {
                inner.stage = ended;
                false
            }
        }
    }

    fn leave(&self) {
        let turn = match &mut self.lock().stage {
            Stage::Started(Progress::Resting(rest)) => {
                rest.left = true;
                rest.turn.as_ref().map(OwnTurn::share)
            }
            _ => None,
        };
        if let Some(turn) = turn {
            turn.let_go();
        }
    }

    fn is_left(&self) -> bool {
        matches!(&self.lock().stage, Stage::Started(Progress::Resting(rest)) if rest.left)
    }

    fn is_claimable(&self) -> bool {
        match &self.lock().stage {
            Stage::Queued(_) => true,
            Stage::Started(Progress::Resting(rest)) => rest.left && !seeded!("tasks_left_for_good"),
            _ => false,
        }
    }

    fn claim_left(&self) -> bool {
        match &mut self.lock().stage {
            Stage::Started(Progress::Resting(rest)) => std::mem::take(&mut rest.left),
            _ => false,
        }
    }

    fn call(&self) {
        let waker = self.lock().waker.take();
        wake(waker);
    }
}

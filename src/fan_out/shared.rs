//! What the runners and the consumer of a fan-out share. Wakers, futures, hooks and a user's drops run after the
//! locks are released.
//!
//! A [`Runner`] takes the source, takes an item, gets its slot and admission, runs its future, and delivers the result.

use super::builder::Limit;
use super::delivery::{Delivery, Due};
use super::results::{Hook, Progress};
use super::state::{Act, Acts, End, Next, Outcome, Source, State, Work};
use crate::core::ask::Ask;
use crate::core::limiter::{Limiter, Outcome as Ended};
use crate::pool::{Admission, Admitted, Caller, Refused, TaskError, Ticket, drop_quietly, wake};
use crate::sync::runtime::Runtime;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::sync::wait_queue::Watch;
use crossbeam_utils::CachePadded;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

pub(super) struct Settings<T> {
    pub(super) limit: Limit,
    /// The policy, and the slots of a shared limit.
    pub(super) admission: Admission,
    pub(super) ahead: Option<usize>,
    pub(super) progress: Option<Box<Hook>>,
    /// The number of all items, if it was known at the start.
    pub(super) total: Option<usize>,
    /// Whether a result ends the fan-out.
    pub(super) fails: fn(&Outcome<T>) -> bool,
    pub(super) classify: Option<Box<Classify<T>>>,
    pub(super) caller: Caller,
    pub(super) runtime: Runtime,
}

/// Maps the output of a future to the outcome of its permit.
pub(super) type Classify<T> = dyn Fn(&T) -> Ended + Send + Sync;

impl<T> Settings<T> {
    /// The outcome of a permit whose item has ended.
    pub(super) fn ended(&self, outcome: &Outcome<T>) -> Ended {
        match (outcome, &self.classify) {
            (Ok(output), Some(classify)) => {
                let classified = catch_unwind(AssertUnwindSafe(|| classify(output)));
                classified.unwrap_or_else(|payload| {
                    drop_quietly(payload);
                    Ended::Ignored
                })
            }
            _ if outcome.is_err() || (self.fails)(outcome) => Ended::Failure,
            _ => Ended::Success,
        }
    }
}

pub(super) struct Shared<Fut: Work> {
    pub(super) settings: Settings<Fut::Output>,
    state: CachePadded<Mutex<State<Fut>>>,
    delivery: CachePadded<Mutex<Delivery<Fut::Output>>>,
}

impl<Fut: Work> Shared<Fut> {
    /// Starts the first runner.
    pub(super) fn start(
        settings: Settings<Fut::Output>,
        state: State<Fut>,
        delivery: Delivery<Fut::Output>,
    ) -> Arc<Self> {
        let state = CachePadded::new(Mutex::new(state));
        let delivery = CachePadded::new(Mutex::new(delivery));
        let shared = Arc::new(Self {
            settings,
            state,
            delivery,
        });
        if let Some(slots) = &shared.settings.admission.slots {
            // Before the limit is read for the first time: a raise is seen then, or told of.
            let watcher: Weak<Self> = Arc::downgrade(&shared);
            slots.watch(&(watcher as Weak<dyn Watch>));
        }
        shared.transition(|_, _| ());
        shared
    }

    /// Runs a transition, then performs its [`Acts`] without the lock.
    fn transition<R>(self: &Arc<Self>, step: impl FnOnce(&mut State<Fut>, &mut Acts) -> R) -> R {
        self.transition_of(self.state.lock(), step)
    }

    fn transition_of<R>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State<Fut>>,
        step: impl FnOnce(&mut State<Fut>, &mut Acts) -> R,
    ) -> R {
        let mut acts = Acts::default();
        let result = step(&mut state, &mut acts);
        self.call(&mut state, &mut acts);
        drop(state);
        self.act(acts);
        result
    }

    /// Keeps the invariant of the state. If only a higher limit would let another runner start, this is called again when a shared
    /// limit has changed.
    fn call(&self, state: &mut State<Fut>, acts: &mut Acts) {
        let limit = self.settings.limit.now();
        // A limit of zero may be raised: one runner waits for the raise.
        state.call(limit.max(1), self.window(limit), acts);
    }

    /// Returns the largest number of items that may be taken and not yet given out as results.
    fn window(&self, limit: usize) -> usize {
        limit.saturating_add(self.settings.ahead.unwrap_or(limit)).max(1)
    }

    #[inline]
    fn act(self: &Arc<Self>, acts: Acts) {
        if !acts.others.is_empty() {
            self.act_rarely(acts.others);
        }
        wake(acts.called);
    }

    #[cold]
    fn act_rarely(self: &Arc<Self>, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Drop(dropped) => drop_quietly(dropped),
                Act::End(last, why) => {
                    if let Some(why) = why {
                        self.deliver(last - 1, Err(why));
                    }
                    let consumer = self.delivery.lock().end(last);
                    wake(consumer);
                }
                Act::EndEarly => {
                    let consumer = self.delivery.lock().abort();
                    wake(consumer);
                }
                Act::Wake(runner) => runner.wake(),
                Act::Abort(runner) => runner.abort(),
                Act::Start(runner) => {
                    let abort = self.settings.runtime.spawn(run(Arc::clone(self), runner));
                    self.transition(|state, acts| state.started(runner, abort, acts));
                }
            }
        }
    }

    /// Delivers a result, and ends the fan-out if it is a failure. Returns the number of results that have been delivered.
    fn deliver(self: &Arc<Self>, item: usize, outcome: Outcome<Fut::Output>) -> usize {
        let fails = (self.settings.fails)(&outcome);
        let delivered = self.delivery.lock().deliver(item, outcome, fails);
        if delivered.fails {
            self.transition(|state, acts| state.fail(item, acts));
        }
        wake(delivered.consumer);
        drop_quietly(delivered.dropped);
        delivered.finished
    }

    fn report(&self, finished: usize) {
        if let Some(hook) = &self.settings.progress {
            let (taken, total) = (self.state.lock().taken, self.settings.total);
            let progress = Progress { taken, finished, total };
            drop_quietly(catch_unwind(AssertUnwindSafe(|| hook(progress))));
        }
    }

    /// Gives an item or the source to the runner, or lets it idle. Returns `None` at the end.
    fn next(self: &Arc<Self>, runner: usize, waker: &Waker) -> Poll<Option<Next<Fut>>> {
        let mut state = self.state.lock();
        match state.take_ahead(runner) {
            Some(ahead) => Poll::Ready(Some(ahead)),
            None => self.transition_of(state, |state, _| {
                state.next(runner, self.window(self.settings.limit.now()), waker)
            }),
        }
    }
}

/// Looks again when a shared limit was changed.
impl<Fut: Work> Watch for Shared<Fut> {
    fn changed(self: Arc<Self>) {
        self.transition(|_, _| ());
        // This may be the last reference, which drops results.
        drop_quietly(self);
    }
}

/// The consumer's methods, without the type of the futures.
pub(super) trait Producer<T>: Send + Sync {
    /// Moves results into `due`, which is empty, or takes the waker. Returns `Ready(false)` if no result is to come.
    fn poll_due(&self, due: &mut Due<T>, waker: &mut Option<Waker>) -> Poll<bool>;
    /// The consumer has given out this number of results since the previous report.
    fn given(self: Arc<Self>, given: usize);
    /// Ends the fan-out: the consumer was dropped.
    fn stop(self: Arc<Self>);
}

impl<Fut: Work> Producer<Fut::Output> for Shared<Fut> {
    fn poll_due(&self, due: &mut Due<Fut::Output>, waker: &mut Option<Waker>) -> Poll<bool> {
        self.delivery.lock().poll_due(due, waker)
    }

    fn given(self: Arc<Self>, given: usize) {
        self.transition(|state, _| state.given(given));
    }

    fn stop(self: Arc<Self>) {
        self.delivery.lock().close();
        self.transition(State::stop);
    }
}

/// A runner. If it is dropped before `in_order` is set, it was aborted or its runtime dropped it, maybe before its first poll.
struct Runner<Fut: Work> {
    shared: Arc<Shared<Fut>>,
    number: usize,
    /// The slot and the admission of its item.
    ticket: Option<Ticket>,
    in_order: bool,
}

impl<Fut: Work> Drop for Runner<Fut> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(Ended::Ignored);
        }
        if !self.in_order {
            let number = self.number;
            self.shared.transition(|state, acts| state.dropped(number, acts));
        }
    }
}

/// Runs items until the source has ended. The `Runner` exists before the first poll, which may never come.
pub(super) fn run<Fut: Work>(shared: Arc<Shared<Fut>>, number: usize) -> impl Future<Output = ()> + Send {
    work(Runner {
        shared,
        number,
        ticket: None,
        in_order: false,
    })
}

async fn work<Fut: Work>(mut runner: Runner<Fut>) {
    runner.work().await;
    runner.in_order = true;
}

impl<Fut: Work> Runner<Fut> {
    async fn work(&mut self) {
        let shared = Arc::clone(&self.shared);
        // A local, so it drops before the runner: a future dropped half-way is gone before its ticket is given back.
        let mut work = pin!(None::<Fut>);
        let mut more = Vec::new();
        loop {
            let number = self.number;
            let next = poll_fn(|cx| shared.next(number, cx.waker())).await;
            let ends = |source, why| shared.transition(|state, acts| state.end(source, why, acts));
            let (item, refused) = match next {
                None => return,
                Some(Next::Run(item, future)) => {
                    work.set(Some(future));
                    (item, None)
                }
                Some(Next::Take(mut source, most)) => {
                    let taken = match poll_fn(|cx| caught(|| source.as_mut().poll_next(cx))).await {
                        Ok(Some(taken)) => taken,
                        Ok(None) => return ends(source, None),
                        Err(payload) => return ends(source, Some(TaskError::panicked(payload))),
                    };
                    // Before the source is put back: at most one item is taken ahead of its slot.
                    let admitted = match taken {
                        Err(why) => Err(Refused::Task(why)),
                        Ok((future, admitted)) => {
                            work.set(Some(future));
                            self.admit(admitted).await
                        }
                    };
                    let refused = match admitted {
                        Ok(()) => None,
                        Err(Refused::Task(why)) => Some(why),
                        Err(Refused::Closed) => {
                            drop_future(work.as_mut());
                            return ends(source, Some(TaskError::Abandoned));
                        }
                    };
                    let end = poll_fn(|cx| Poll::Ready(take_more(&mut source, most, &mut more, cx))).await;
                    let put_back =
                        shared.transition(|state, acts| state.put_back(number, source, &mut more, end, acts));
                    let Some(item) = put_back else {
                        more.drain(..).for_each(drop_quietly);
                        drop_future(work.as_mut());
                        return self.ticket.take().map_or((), Ticket::cancel);
                    };
                    (item, refused)
                }
            };
            let outcome = match refused {
                Some(why) => Err(why),
                None => {
                    let mut future = work.as_mut().as_pin_mut().expect("it was set");
                    let polled = poll_fn(|cx| shared.settings.caller.within(|| caught(|| future.as_mut().poll(cx))));
                    polled.await.map_err(TaskError::panicked)
                }
            };
            drop_future(work.as_mut());
            if let Some(ticket) = self.ticket.take() {
                ticket.finish(shared.settings.ended(&outcome));
            }
            // Futures that are ready at once must not starve the runtime's other tasks. Before the result: a runner that has delivered
            // looks for the next item in the same poll, so that none is dropped in between.
            tokio::task::coop::consume_budget().await;
            shared.report(shared.deliver(item, outcome));
        }
    }

    /// Waits for the slot and the policy of all items. `admitted` is the admission by the policy of this one.
    async fn admit(&mut self, admitted: Admitted) -> Result<(), Refused> {
        let admission = &self.shared.settings.admission;
        if admission.is_gated() {
            match admission.admit(Ask::one()).await {
                Ok(ticket) => self.ticket = Some(ticket),
                Err(refused) => {
                    drop_quietly(admitted);
                    return Err(refused);
                }
            }
        }
        if admitted.is_some() {
            self.ticket.get_or_insert_default().admitted = admitted;
        }
        Ok(())
    }
}

/// Takes up to `most` more items that are ready. Returns the end of the source if it has come.
fn take_more<Fut: Work>(
    source: &mut Source<Fut>,
    most: usize,
    more: &mut Vec<Fut>,
    cx: &mut Context<'_>,
) -> Option<End> {
    while more.len() < most {
        match caught(|| source.as_mut().poll_next(cx)) {
            // Only items with a policy of their own are refused, and none of these is taken ahead.
            Poll::Ready(Ok(Some(taken))) => more.extend(taken.ok().map(|(future, _)| future)),
            Poll::Ready(Ok(None)) => return Some(None),
            Poll::Ready(Err(payload)) => return Some(Some(TaskError::panicked(payload))),
            Poll::Pending => return None,
        }
    }
    None
}

/// Returns the result of the poll, or the payload of its panic.
fn caught<T>(poll: impl FnOnce() -> Poll<T>) -> Poll<std::thread::Result<T>> {
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    }
}

fn drop_future<Fut>(mut work: Pin<&mut Option<Fut>>) {
    drop_quietly(catch_unwind(AssertUnwindSafe(|| work.set(None))));
}

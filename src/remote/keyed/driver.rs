//! The driver of a limiter of many keys: one task, with a step under way at each of many keys.

use super::Shared;
use super::client::{Flight, MOST};
use crate::remote::backend::{Backend, Session, StoreError};
use crate::remote::driver::NEVER;
use crate::remote::key::Key;
use crate::remote::step::StepReply;
use crate::time::{Instant, Sleep};
use futures::StreamExt;
use futures::future::{AbortHandle, Abortable, Either, select};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

/// The most steps that have failed and leave their room to those of other keys.
const MOST_FAILING: usize = 3 * MOST;

pub(super) fn drive<B: Backend>(shared: Arc<Shared<B>>) -> impl Future<Output = ()> + Send {
    // Also of a driver that is dropped before it ran.
    let leaving = Leaving(Arc::clone(&shared));
    async move {
        run(&shared).await;
        drop(leaving);
    }
}

/// Timers of steps that have ended, for the next ones.
#[derive(Default)]
struct Timers(Mutex<Vec<Sleep>>);

impl Timers {
    fn until<B: Backend>(&self, shared: &Shared<B>, at: Instant) -> Sleep {
        let spare = self.0.lock().pop();
        let mut timer = spare.unwrap_or_else(|| Sleep::until(&shared.clock, at));
        timer.reset(at);
        timer
    }

    fn put_back(&self, mut timer: Sleep) {
        timer.reset(NEVER);
        self.0.lock().push(timer);
    }
}

async fn run<B: Backend>(shared: &Shared<B>) {
    let timers = Timers::default();
    let (mut flights, mut listens) = (FuturesUnordered::new(), FuturesUnordered::new());
    let mut timer: Option<Sleep> = None;
    poll_fn(|cx| {
        loop {
            // First, so that no key falls between.
            let waker = cx.waker().clone();
            let before = shared.with(|client| client.listen(waker));
            drop(before);
            let next = shared.with(|client| client.on_timers(shared.clock.now()));
            let failing = shared.with(|client| client.failing());
            while flights.len() < MOST + failing.min(MOST_FAILING) {
                let Some(key) = shared.with(super::client::Client::next_key) else {
                    break;
                };
                flights.push(exchange(shared, key, &timers));
            }
            let mut new = None;
            let handle = || {
                let (handle, registration) = AbortHandle::new_pair();
                new = Some(registration);
                handle
            };
            let key = shared.with(|client| client.next_listen(handle));
            if let (Some(key), Some(registration)) = (key, new) {
                listens.push(Abortable::new(listen(shared, key), registration));
                continue;
            }
            while let Poll::Ready(Some(_)) = listens.poll_next_unpin(cx) {}
            match flights.poll_next_unpin(cx) {
                Poll::Ready(Some(())) => continue,
                Poll::Ready(None) if shared.with(|client| client.is_done()) => return Poll::Ready(()),
                _ => {}
            }
            let Some(next) = next else { return Poll::Pending };
            let timer = timer.get_or_insert_with(|| Sleep::until(&shared.clock, next));
            timer.reset(next);
            if Pin::new(timer).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Passes on the notifications for the place at `key`, until it is aborted.
async fn listen<B: Backend>(shared: &Shared<B>, key: Key) {
    let place = place(shared);
    loop {
        shared.backend.notified(&key, place).await;
        shared.with(|client| client.on_notified(&key));
    }
}

/// The name of this process in notifications.
fn place<B>(shared: &Shared<B>) -> Session {
    Session::of_place(shared.with(|client| client.config().client))
}

/// When the driver ends, also when it is dropped, the limiter is closed, the store listens for no key, and those that close the limiter go
/// on.
struct Leaving<B: Backend>(Arc<Shared<B>>);

impl<B: Backend> Drop for Leaving<B> {
    fn drop(&mut self) {
        let place = place(&self.0);
        self.0.with(super::client::Client::stop);
        for key in self.0.with(|client| client.subscribed()) {
            self.0.backend.leave(&key, place);
        }
    }
}

/// Sends step after step at `key` until there is none left.
async fn exchange<B: Backend>(shared: &Shared<B>, key: Key, timers: &Timers) {
    let retry = shared.with(|client| client.config().retry);
    while let Some(flight) = shared.with(|client| client.begin(&key, shared.clock.now())) {
        // The clock is read before each repetition: the process may have been suspended.
        loop {
            if shared.with(|client| client.gives_up(&key, &flight, shared.clock.now())) {
                shared.with(|client| client.on_given_up(&key, &flight));
                break;
            }
            let error = match send(shared, &key, &flight, timers).await {
                Ok(reply) => {
                    shared.with(|client| client.on_reply(&key, &flight, &reply, shared.clock.now()));
                    break;
                }
                Err(error) => error,
            };
            shared.with(|client| client.on_failure(&key, shared.clock.now(), error));
            Sleep::until(&shared.clock, shared.clock.after(shared.clock.now(), retry)).await;
        }
    }
    while let Some(key) = shared.with(super::client::Client::next_leave) {
        shared.backend.leave(&key, place(shared));
    }
}

async fn send<B: Backend>(
    shared: &Shared<B>,
    key: &Key,
    flight: &Flight,
    timers: &Timers,
) -> Result<StepReply, StoreError> {
    let timeout = shared.with(|client| client.config().timeout);
    let limit = shared.clock.after(shared.clock.now(), timeout);
    let reply = pin!(shared.backend.step(key, &flight.counted, &flight.step));
    let mut timer = timers.until(shared, limit);
    let reply = match select(reply, &mut timer).await {
        Either::Left((reply, _)) => Some(reply),
        Either::Right(_) => None,
    };
    timers.put_back(timer);
    let reply = reply.unwrap_or(Err(StoreError::TimedOut { after: timeout }))?;
    let legs = flight.counted.len();
    let mut refusals = reply.takes.iter().filter_map(|taken| taken.as_ref().err());
    let is_whole =
        reply.takes.len() == flight.step.takes.len() && (flight.step.grant.is_none() || reply.usage.len() == legs);
    if is_whole && refusals.all(|refusal| refusal.leg < legs) {
        return Ok(reply);
    }
    Err(StoreError::Answer {
        given: format!("{reply:?}").into(),
    })
}

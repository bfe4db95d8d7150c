//! The driver of a limiter of many keys: one task, with a step under way at each of many keys.

use super::Shared;
use super::client::Flight;
use crate::remote::backend::{Backend, StoreError};
use crate::remote::key::Key;
use crate::remote::step::StepReply;
use crate::time::Sleep;
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

/// The most steps under way.
const MOST: usize = 256;

pub(super) async fn drive<B: Backend>(shared: Arc<Shared<B>>) {
    let mut flights = FuturesUnordered::new();
    poll_fn(|cx| {
        loop {
            // First, so that no key falls between.
            let waker = cx.waker().clone();
            let before = shared.with(|client| client.listen(waker));
            drop(before);
            while flights.len() < MOST
                && let Some(key) = shared.with(super::client::Client::next_key)
            {
                flights.push(exchange(&shared, key));
            }
            match flights.poll_next_unpin(cx) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) if shared.with(|client| client.is_closed()) => return Poll::Ready(()),
                _ => return Poll::Pending,
            }
        }
    })
    .await;
}

/// Sends step after step at `key` until there is none left.
async fn exchange<B: Backend>(shared: &Shared<B>, key: Key) {
    let retry = shared.with(|client| client.config().retry);
    while let Some(flight) = shared.with(|client| client.begin(&key, shared.clock.now())) {
        loop {
            match send(shared, &key, &flight).await {
                Ok(reply) => {
                    shared.with(|client| client.on_reply(&key, &flight, &reply, shared.clock.now()));
                    break;
                }
                Err(_) if !shared.with(|client| client.on_failure(&flight, shared.clock.now())) => break,
                Err(_) => Sleep::until(&shared.clock, shared.clock.after(shared.clock.now(), retry)).await,
            }
        }
    }
}

async fn send<B: Backend>(shared: &Shared<B>, key: &Key, flight: &Flight) -> Result<StepReply, StoreError> {
    let timeout = shared.with(|client| client.config().timeout);
    let limit = shared.clock.after(shared.clock.now(), timeout);
    let reply = pin!(shared.backend.step(key, &flight.legs.counted, &flight.step));
    match select(reply, Sleep::until(&shared.clock, limit)).await {
        Either::Left((reply, _)) => reply,
        Either::Right(_) => Err(StoreError::TimedOut { after: timeout }),
    }
}

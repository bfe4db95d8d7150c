//! The task of a watch, for all waiters of this process at a key: it begins with the first waiter, restarts when it ends, and
//! stops without waiters.

use super::waiters::{Change, Waiters};
use super::{Inner, LINGER, NodeStore, PAUSE, Queue};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tollgate::remote::Key;

impl<S: NodeStore> Queue<S> {
    /// Watches the key, unless it is watched.
    pub(super) fn watch(&self, term: &Arc<S::Term>, key: &Key) {
        let mut waiters_by_key = self.0.waiters_by_key.lock();
        let waiters = waiters_by_key.entry(key.clone()).or_default();
        if waiters.is_watched(|watched| self.0.store.is_over(watched)) {
            // The view may have the awaited event already.
            let reported = waiters.due();
            drop(waiters_by_key);
            return notify_all(reported);
        }
        // Relaxed: only the number has to be unique.
        let number = self.0.watches.fetch_add(1, Ordering::Relaxed) + 1;
        let watching = watch(Arc::downgrade(&self.0), Arc::clone(term), key.clone(), number);
        waiters.watch(number, Arc::clone(term), tokio::spawn(watching));
    }
}

impl<S: NodeStore> Inner<S> {
    fn apply(&self, key: &Key, number: u64, change: Change) {
        let reported = {
            let mut waiters_by_key = self.waiters_by_key.lock();
            let waiters = waiters_by_key
                .get_mut(key)
                .filter(|waiters| waiters.is_watched_by(number));
            waiters.map(|waiters| (waiters.apply(change), waiters.changed()))
        };
        if let Some((reported, changed)) = reported {
            notify_all(reported);
            changed.notify_waiters();
        }
    }

    /// Ends this watch. False when it was replaced.
    fn blind(&self, key: &Key, number: u64) -> bool {
        let changed = {
            let mut waiters_by_key = self.waiters_by_key.lock();
            let waiters = waiters_by_key
                .get_mut(key)
                .filter(|waiters| waiters.is_watched_by(number));
            waiters.map(Waiters::blind)
        };
        if let Some(changed) = &changed {
            changed.notify_waiters();
        }
        changed.is_some()
    }

    /// True when there is no waiter for this watch. Then it is over.
    fn is_idle(&self, key: &Key, number: u64) -> bool {
        let mut waiters_by_key = self.waiters_by_key.lock();
        let waiters = waiters_by_key
            .get_mut(key)
            .filter(|waiters| waiters.is_watched_by(number));
        waiters.is_none_or(Waiters::is_idle)
    }
}

/// Outside locks: it may run foreign code.
fn notify_all(by_session: Vec<Arc<Notify>>) {
    by_session.iter().for_each(|waiter| waiter.notify_one());
}

/// Watches a key, as long as it has waiters.
async fn watch<S: NodeStore>(inner: Weak<Inner<S>>, term: Arc<S::Term>, key: Key, number: u64) {
    // Covers all attempts: a watch that fails at once must end without waiters, too.
    let mut idle = pin!(async {
        loop {
            sleep(LINGER).await;
            if inner.upgrade().is_none_or(|inner| inner.is_idle(&key, number)) {
                break;
            }
        }
    });
    let mut pause = PAUSE;
    while let Some(inner) = inner.upgrade() {
        let begun = Instant::now();
        let goes_on = {
            let mut watched = pin!(
                inner
                    .store
                    .watch(&term, &key, |change| inner.apply(&key, number, change))
            );
            poll_fn(|cx| match watched.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending => idle.as_mut().poll(cx).map(|()| false),
            })
            .await
        };
        if !goes_on || !inner.blind(&key, number) {
            return;
        }
        if inner.store.is_over(&term) {
            let reported = inner.waiters_by_key.lock().get(&key).map(Waiters::all);
            return notify_all(reported.unwrap_or_default());
        }
        drop(inner);
        // A watch that has lasted restarts soon; after one that has not, the pause grows.
        pause = if begun.elapsed() > LINGER { PAUSE } else { pause };
        let paused = sleep(pause);
        pause = (pause * 2).min(LINGER);
        let mut paused = pin!(paused);
        let goes_on = poll_fn(|cx| match idle.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => paused.as_mut().poll(cx).map(|()| true),
        });
        if !goes_on.await {
            return;
        }
    }
}

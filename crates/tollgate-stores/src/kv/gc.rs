//! Deletes expired documents, in the process that wrote them last.

use super::{CachedValue, Ledger, Values};
use crate::document::fresh_in;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::remote::Key;

/// Without handles the process does not wait for documents due later than this.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause after a failure, which doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of attempts, over two minutes.
const ATTEMPTS: u32 = 7;
/// How many times a process without handles collects what others have written.
const FAVOURS: u32 = 3;
/// How many times an undeletable value is read again at once: another process may have written it meanwhile.
const TAKES: u32 = 3;

/// The outcome of a look.
enum Look {
    /// There is nothing left to collect.
    Done,
    /// It is due later.
    Later,
    /// It is due later, and another process has written it, which collects it or has died.
    Theirs,
    /// The store did not answer.
    Unknown,
}

/// Collects a key until no document of this process is left.
pub(super) async fn collect<V: Values>(ledger: Ledger<V>, key: Key, cached: Arc<CachedValue<V::At>>) {
    let mut there = Some(ledger);
    let (mut failures, mut favours) = (0, 0);
    loop {
        let due = cached.state.lock().await.due;
        if let (Some(due), Some(ledger)) = (due, there.take()) {
            let weak = Arc::downgrade(&ledger.0);
            let patient = due.saturating_duration_since(Instant::now()) <= PATIENCE;
            let kept = patient.then_some(ledger);
            let _ = timeout_at(due, cached.earlier.notified()).await;
            there = kept.or_else(|| weak.upgrade().map(Ledger));
        }
        let Some(ledger) = &there else { return };
        let looked = look(ledger, &key, &cached).await;
        favours = match looked {
            Look::Theirs if cached.is_empty() => favours + 1,
            _ => 0,
        };
        failures = match looked {
            Look::Unknown => failures + 1,
            _ => 0,
        };
        if matches!(looked, Look::Done) || favours == FAVOURS || failures == ATTEMPTS {
            let mut state = cached.state.lock().await;
            // A sync may have come in between.
            let stays = match looked {
                Look::Theirs => !cached.is_empty(),
                _ => state.due.is_some_and(|due| due > Instant::now()),
            };
            if stays {
                (failures, favours) = (0, 0);
                continue;
            }
            (state.due, state.has_collector) = (None, false);
            drop(state);
            return ledger.0.forget(&key, &cached);
        }
        if failures > 0 {
            sleep(PAUSE * (1 << (failures - 1))).await;
        }
    }
}

async fn look<V: Values>(ledger: &Ledger<V>, key: &Key, cached: &CachedValue<V::At>) -> Look {
    let inner = &*ledger.0;
    let mut state = cached.state.lock().await;
    let state = &mut *state;
    if state.due.is_some_and(|due| due > Instant::now()) {
        return Look::Later;
    }
    let (mut look, mut takes) = (Look::Later, 0);
    loop {
        if state.known.is_none() {
            look = Look::Theirs;
            if inner.read(key, state).await.is_err() {
                return Look::Unknown;
            }
        }
        let seen = state.known.as_ref().zip(state.observer.as_ref());
        let Some(((document, at), observer)) = seen else { break };
        let Ok(lasts) = fresh_in(document, observer, inner.now()) else {
            break;
        };
        if lasts > 0 {
            state.due = Some(Instant::now() + Duration::from_micros(lasts));
            return look;
        }
        let at = at.clone();
        state.known = None;
        match inner.values.delete(key, state.ttl, &at).await {
            Ok(true) => {
                state.observer = None;
                break;
            }
            // Or something else lies beside it, and stays.
            Ok(false) if takes == TAKES && !seeded!("remote_collects_without_pause") => return Look::Unknown,
            Ok(false) => takes += 1,
            Err(_) => return Look::Unknown,
        }
    }
    state.due = None;
    Look::Done
}

//! Notes that are as good as none are taken away by the process that wrote them last.

use super::{Ledger, Page, Values};
use crate::remote::book::fresh_in;
use crate::remote::key::Key;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

/// For what is due later nobody waits who has no handle any more.
const PATIENCE: Duration = Duration::from_secs(60);
/// After a failure; twice as long after the next.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is tried: for two minutes.
const ATTEMPTS: u32 = 7;

/// Looks after a key until there is no note of this process any more.
pub(super) async fn tidy<V: Values>(ledger: Ledger<V>, key: Key, page: Arc<Page<V::At>>) {
    let mut there = Some(ledger);
    let mut failures = 0;
    loop {
        let due = page.state.lock().await.due;
        if let (Some(due), Some(ledger)) = (due, there.take()) {
            let weak = Arc::downgrade(&ledger.0);
            let patient = due.saturating_duration_since(Instant::now()) <= PATIENCE;
            let kept = patient.then_some(ledger);
            let _ = timeout_at(due, page.earlier.notified()).await;
            there = kept.or_else(|| weak.upgrade().map(Ledger));
        }
        let Some(ledger) = &there else { return };
        match look(ledger, &key, &page).await {
            Some(true) => return ledger.0.forget(&key, &page),
            Some(false) => failures = 0,
            None if failures == ATTEMPTS => {
                page.state.lock().await.is_tidied = false;
                return ledger.0.forget(&key, &page);
            }
            None => {
                sleep(PAUSE * (1 << failures)).await;
                failures += 1;
            }
        }
    }
}

/// True when there is nothing to be looked after any more; false when it is due later; nothing when that is not known.
async fn look<V: Values>(ledger: &Ledger<V>, key: &Key, page: &Arc<Page<V::At>>) -> Option<bool> {
    let inner = &*ledger.0;
    let mut state = page.state.lock().await;
    let state = &mut *state;
    if state.due.is_some_and(|due| due > Instant::now()) {
        return Some(false);
    }
    loop {
        if state.known.is_none() {
            inner.read(key, state).await.ok()?;
        }
        let seen = state.known.as_ref().zip(state.witness.as_ref());
        let Some(((note, at), witness)) = seen else { break };
        let lasts = fresh_in(note, witness, inner.now()).ok()?;
        if lasts > 0 {
            // Somebody else has written it, who looks after it; or who has died.
            if page.is_deserted() {
                break;
            }
            state.due = Some(Instant::now() + Duration::from_micros(lasts));
            return Some(false);
        }
        let at = at.clone();
        state.known = None;
        if inner.values.delete(key, state.ttl, &at).await.ok()? {
            state.witness = None;
            break;
        }
    }
    (state.due, state.is_tidied) = (None, false);
    Some(true)
}

//! Makes the changes of a sync at the store, and looks at the result, until nothing is left to change.

use super::node_queue::NodeQueue;
use super::session_diff::{Ops, SessionDiff};
use super::waiters::Waiters;
use super::{Inner, NodeStore, PAUSE};
use tollgate::remote::Key;
use tollgate::remote::{Session, StoreError};

/// The outcome of changes that a watch may report.
enum Watched {
    /// They are done, with this result.
    Seen(NodeQueue),
    /// They are done.
    Done,
    /// They are not begun.
    Not,
}

/// The session and key of the changes.
pub(super) struct Visit<'a, S: NodeStore> {
    pub(super) term: &'a S::Term,
    pub(super) key: &'a Key,
    pub(super) limit: u64,
    pub(super) session: Session,
}

impl<S: NodeStore> Visit<'_, S> {
    async fn carry_out(&self, store: &S, ops: &Ops, look: bool) -> Result<Option<NodeQueue>, StoreError> {
        let Self {
            term,
            key,
            limit,
            session,
        } = *self;
        store.carry_out(term, key, limit, session, ops, look).await
    }
}

/// The most rounds of a sync, when its look asks for more changes.
const ROUNDS: usize = 8;

impl<S: NodeStore> Inner<S> {
    /// Makes the nodes at the store equal to the diff's, and decides on grants. `None` when the session has gone.
    pub(super) async fn carry_out(
        &self,
        visit: &Visit<'_, S>,
        diff: &mut SessionDiff,
    ) -> Result<Option<NodeQueue>, StoreError> {
        let session = visit.session;
        let mut look = diff.in_doubt;
        let mut rounds = 0;
        loop {
            let ops = if look { Ops::default() } else { diff.ops() };
            diff.in_doubt = true;
            let (mut queue, reported) = match self.watched(visit, &ops).await? {
                Watched::Seen(queue) => (queue, true),
                Watched::Done => (self.look(visit, &Ops::default()).await?, false),
                Watched::Not => (self.look(visit, &ops).await?, false),
            };
            let mut there = diff.see(session, &queue, &ops);
            if !there && reported {
                // Changes that a watch has not reported may still be there.
                diff.in_doubt = true;
                queue = self.look(visit, &Ops::default()).await?;
                there = diff.see(session, &queue, &ops);
            }
            if !there || !look && !diff.begun() {
                return Ok(None);
            }
            if diff.begun() {
                diff.decide(session, &queue);
            }
            look = false;
            rounds += 1;
            // After this many rounds the rest does no harm, and is left to the next sync.
            if diff.ops().is_empty() || rounds == ROUNDS {
                return Ok(Some(queue));
            }
        }
    }

    /// Carries out `ops`, and looks.
    pub(super) async fn look(&self, visit: &Visit<'_, S>, ops: &Ops) -> Result<NodeQueue, StoreError> {
        let queue = visit.carry_out(&self.store, ops, true).await?;
        let mut queue = queue.ok_or_else(|| StoreError::Answer {
            given: "nothing, to a look".into(),
        })?;
        self.waiters_by_key
            .lock()
            .entry(visit.key.clone())
            .or_default()
            .see(&mut queue);
        Ok(queue)
    }

    /// Carries out `ops` without a look, if a watch reports the result.
    async fn watched(&self, visit: &Visit<'_, S>, ops: &Ops) -> Result<Watched, StoreError> {
        let (key, session) = (visit.key, visit.session);
        if !S::REPORTS || ops.begin || ops.is_empty() {
            return Ok(Watched::Not);
        }
        if !self.waiters_by_key.lock().get_mut(key).is_some_and(Waiters::keep_watch) {
            return Ok(Watched::Not);
        }
        if let Some(queue) = visit.carry_out(&self.store, ops, false).await? {
            return Ok(Watched::Seen(queue));
        }
        let reported = tokio::time::timeout(PAUSE, self.reported(key, session, ops)).await;
        let Ok(Some(mut queue)) = reported else {
            return Ok(Watched::Done);
        };
        let known = queue.mark(session, |name| self.store.token(visit.term, key, name));
        Ok(if known { Watched::Seen(queue) } else { Watched::Done })
    }

    /// Waits until the watch has reported `ops`. `None` without a watch.
    async fn reported(&self, key: &Key, session: Session, ops: &Ops) -> Option<NodeQueue> {
        loop {
            let changed;
            // Created before the lock is released: later events are not missed.
            let notified;
            {
                let waiters_by_key = self.waiters_by_key.lock();
                let waiters = waiters_by_key.get(key)?;
                if let Some(queue) = waiters.queue_after(session, ops)? {
                    return Some(queue);
                }
                changed = waiters.changed();
                notified = changed.notified();
            }
            notified.await;
        }
    }
}

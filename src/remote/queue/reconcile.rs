//! A step's changes at the store, and looks at what has come of them, until nothing is left to change.

use super::node_queue::NodeQueue;
use super::session_diff::{Ops, SessionDiff};
use super::waiters::Waiters;
use super::{Inner, NodeStore, PAUSE};
use crate::remote::backend::{Session, StoreError};
use crate::remote::key::Key;

/// What has come of changes that a watch may tell of.
enum Watched {
    /// They are done, and this is what there is now.
    Seen(NodeQueue),
    /// They are done.
    Done,
    /// They are not begun.
    Not,
}

/// Whose changes they are.
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

/// How often a step is gone on with, when what it finds asks for more changes.
const ROUNDS: usize = 8;

impl<S: NodeStore> Inner<S> {
    /// Makes what lies at the store what the account says, and decides what is granted. `None` when the session has gone.
    pub(super) async fn carry_out(
        &self,
        visit: &Visit<'_, S>,
        diff: &mut SessionDiff,
    ) -> Result<Option<NodeQueue>, StoreError> {
        let session = visit.session;
        let mut look = diff.in_doubt && !seeded!("queue_says_it_again");
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
            if !there && reported && !seeded!("queue_believes_the_watch") {
                // What a watch has not told of yet may well be there.
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
            // What is left after so many does no harm, and is done by the next step.
            if diff.ops().is_empty() || rounds == ROUNDS {
                return Ok(Some(queue));
            }
        }
    }

    /// Does all that, and looks.
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

    /// Does all that without a look, if there is a watch that tells what comes of it.
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

    /// Waits until the watch has told of all this. `None` when there is no watch any more.
    async fn reported(&self, key: &Key, session: Session, ops: &Ops) -> Option<NodeQueue> {
        loop {
            let changed;
            // Made before the lock is free again: what happens from then on is not missed.
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

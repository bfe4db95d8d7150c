//! A step's changes at the store, and looks at what has come of them, until nothing is left to change.

use super::account::{Account, Ops};
use super::line::Line;
use super::room::Room;
use super::{Inner, PAUSE, Shelf};
use crate::remote::backend::{Session, StoreError};
use crate::remote::key::Key;

/// What has come of changes that a watch may tell of.
enum Watched {
    /// They are done, and this is what there is now.
    Seen(Line),
    /// They are done.
    Done,
    /// They are not begun.
    Not,
}

/// Whose changes they are.
pub(super) struct Visit<'a, S: Shelf> {
    pub(super) term: &'a S::Term,
    pub(super) key: &'a Key,
    pub(super) limit: u64,
    pub(super) session: Session,
}

impl<S: Shelf> Visit<'_, S> {
    async fn carry_out(&self, shelf: &S, ops: &Ops, look: bool) -> Result<Option<Line>, StoreError> {
        let Self {
            term,
            key,
            limit,
            session,
        } = *self;
        shelf.carry_out(term, key, limit, session, ops, look).await
    }
}

/// How often a step is gone on with, when what it finds asks for more changes.
const ROUNDS: usize = 8;

impl<S: Shelf> Inner<S> {
    /// Makes what lies at the store what the account says, and decides what is granted. `None` when the session has gone.
    pub(super) async fn carry_out(
        &self,
        visit: &Visit<'_, S>,
        account: &mut Account,
    ) -> Result<Option<Line>, StoreError> {
        let session = visit.session;
        let mut look = account.in_doubt && !seeded!("queue_says_it_again");
        let mut rounds = 0;
        loop {
            let ops = if look { Ops::default() } else { account.ops() };
            account.in_doubt = true;
            let (mut line, told) = match self.watched(visit, &ops).await? {
                Watched::Seen(line) => (line, true),
                Watched::Done => (self.look(visit, &Ops::default()).await?, false),
                Watched::Not => (self.look(visit, &ops).await?, false),
            };
            let mut there = account.see(session, &line, &ops);
            if !there && told && !seeded!("queue_believes_the_watch") {
                // What a watch has not told of yet may well be there.
                account.in_doubt = true;
                line = self.look(visit, &Ops::default()).await?;
                there = account.see(session, &line, &ops);
            }
            if !there || !look && !account.begun() {
                return Ok(None);
            }
            if account.begun() {
                account.judge(session, &line);
            }
            look = false;
            rounds += 1;
            // What is left after so many does no harm, and is done by the next step.
            if account.ops().is_empty() || rounds == ROUNDS {
                return Ok(Some(line));
            }
        }
    }

    /// Does all that, and looks.
    pub(super) async fn look(&self, visit: &Visit<'_, S>, ops: &Ops) -> Result<Line, StoreError> {
        let line = visit.carry_out(&self.shelf, ops, true).await?;
        let mut line = line.ok_or_else(|| StoreError::Answer {
            given: "nothing, to a look".into(),
        })?;
        self.rooms.lock().entry(visit.key.clone()).or_default().see(&mut line);
        Ok(line)
    }

    /// Does all that without a look, if there is a watch that tells what comes of it.
    async fn watched(&self, visit: &Visit<'_, S>, ops: &Ops) -> Result<Watched, StoreError> {
        let (key, session) = (visit.key, visit.session);
        if !S::TELLS || ops.begin || ops.is_empty() {
            return Ok(Watched::Not);
        }
        if !self.rooms.lock().get_mut(key).is_some_and(Room::is_asked) {
            return Ok(Watched::Not);
        }
        if let Some(line) = visit.carry_out(&self.shelf, ops, false).await? {
            return Ok(Watched::Seen(line));
        }
        let told = tokio::time::timeout(PAUSE, self.told(key, session, ops)).await;
        let Ok(Some(mut line)) = told else {
            return Ok(Watched::Done);
        };
        let known = line.mark(session, |name| self.shelf.token(visit.term, key, name));
        Ok(if known { Watched::Seen(line) } else { Watched::Done })
    }

    /// Waits until the watch has told of all this. `None` when there is no watch any more.
    async fn told(&self, key: &Key, session: Session, ops: &Ops) -> Option<Line> {
        loop {
            let changed;
            // Made before the lock is free again: what happens from then on is not missed.
            let notified;
            {
                let rooms = self.rooms.lock();
                let room = rooms.get(key)?;
                if let Some(line) = room.line_after(session, ops)? {
                    return Some(line);
                }
                changed = room.changed();
                notified = changed.notified();
            }
            notified.await;
        }
    }
}

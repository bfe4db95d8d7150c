//! Permits in a document.
//!
//! Keys of a limiter, in its folder:
//! - `holders`: the document, the reference's own state, and a number that is never the same twice;
//! - `by/<session>`: one for each session, locked by it. Consul deletes it with the session, which shows its end.
//!
//! A sync reads both at one instant, ends dead sessions in the document, and does what the reference does. It writes the
//! document if it is still the one that was read, and if its own session lives. The same transaction writes to the keys of
//! sessions that got a grant, if they live. If a condition does not hold, it reads again.

mod view;

use super::sessions::ConsulSession;
use super::{Consul, Inner, Keeping, permits_only};
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::RemoteError;
use tollgate::remote::{Backend, Rule, Session, StoreError, SyncReply, SyncRequest};
use view::{MOST_NOTIFIED, Place, Plan, View};

#[cfg(test)]
mod tests;

impl Keeping for Consul {
    fn inner(&self) -> &Inner {
        &self.0
    }

    async fn attempt(
        &self,
        folder: &str,
        limit: u64,
        sync: &SyncRequest,
        consul_session: Option<&ConsulSession>,
    ) -> Result<Option<SyncReply>, StoreError> {
        let place = &Place(folder.to_owned());
        let Inner {
            api, consul_sessions, ..
        } = &*self.0;
        let (session, nonce) = (sync.session, &|| consul_sessions.nonce());
        let (entries, last) = api.list(&place.0).await?;
        let mut view = View::of(place, entries, last, limit)?;
        // The key belongs to another session of this name, or ours has ended.
        let ours = consul_session.filter(|consul_session| !consul_session.is_lost());
        let id = ours.map(|consul_session| &*consul_session.id);
        if let Some(ops) = view.create(place, sync, id, nonce)? {
            let Some(written) = api.change(&ops).await? else {
                return Ok(None);
            };
            view.created(written);
        }
        let Plan {
            mut reply,
            notify,
            comes,
            ops,
        } = view.plan(place, sync, id, nonce)?;
        let mut life = view.life(session);
        if !ops.is_empty() {
            let Some(written) = api.change(&ops).await? else {
                return Ok(None);
            };
            if comes {
                life = written;
            }
            self.notify(place, &view, notify.get(MOST_NOTIFIED..).unwrap_or_default())
                .await;
        }
        if let (true, Some(consul_session)) = (reply.alive, ours) {
            let again = || sync.ttl / 20 + consul_sessions.part_of(sync.ttl / 20);
            reply.again = view.looks_out(session).then(again);
            if view.wants_news(session) {
                consul_session.watch(api, place.life(session), false, life, sync.ttl);
            }
        }
        Ok(Some(reply))
    }
}

impl Consul {
    /// Wakes the sessions beyond the transaction. If one of them has gone meanwhile, the others find out with their next
    /// renewal.
    async fn notify(&self, place: &Place, view: &View, notify: &[Session]) {
        let Inner {
            api, consul_sessions, ..
        } = &*self.0;
        for some in notify.chunks(MOST_NOTIFIED) {
            let ops = view.notifications(place, some.iter(), &|| consul_sessions.nonce());
            let _ = api.change(&ops).await;
        }
    }
}

impl Backend for Consul {
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        permits_only(rule, "Consul")?;
        super::supports(ttl)
    }

    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        super::sync(self, key, rule, sync).await
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.0.consul_sessions.notified(key, session).await;
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.consul_sessions.remove(key, session);
    }
}

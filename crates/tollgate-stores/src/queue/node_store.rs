//! The interface to a store with ordered nodes.

use super::node_queue::NodeQueue;
use super::session_diff::Ops;
use super::waiters::Change;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tollgate::remote::Key;
use tollgate::remote::{Session, StoreError};

/// A store that keeps nodes in order of their creation.
pub(crate) trait NodeStore: Send + Sync + 'static {
    /// The lifetime of nodes: until it is over, and for a time after its keeper was last heard of.
    type Term: Send + Sync + 'static;

    /// A term under which nodes last at least for `ttl` after the sync that made them, and not much longer once their process
    /// is gone.
    fn term(&self, ttl: Duration) -> impl Future<Output = Result<Arc<Self::Term>, StoreError>> + Send;

    /// Whether all nodes of this term go.
    fn is_over(&self, term: &Self::Term) -> bool;

    /// Whether all nodes of this term have gone by themselves, and none has to be deleted.
    fn is_gone(&self, term: &Self::Term) -> bool {
        self.is_over(term)
    }

    /// How long before `at` the term was last renewed, where syncs do not renew it.
    fn age(&self, term: &Self::Term, at: Instant) -> Duration {
        let _ = (term, at);
        Duration::ZERO
    }

    /// Whether [`watch`](Self::watch) reports the process's own changes as well, before any later event. Then a watcher needs
    /// no look.
    const REPORTS: bool = false;

    /// The token of a node that was made in this term, where [`REPORTS`](Self::REPORTS).
    fn token(&self, term: &Self::Term, key: &Key, name: &str) -> Option<u64> {
        let _ = (term, key, name);
        None
    }

    /// Carries out `ops`, in order and atomically, and returns the nodes under the key then; `None`, where no look is asked
    /// for. A new key gets `limit`. While the outcome of an earlier failure is unknown, the call is a look only.
    fn carry_out(
        &self,
        term: &Self::Term,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> impl Future<Output = Result<Option<NodeQueue>, StoreError>> + Send;

    /// Deletes all nodes of this session, and the key with the last session. The term is that of the session, if it is known;
    /// an attempt may have been made before. `ttl` is the session's.
    fn end(
        &self,
        term: Option<&Self::Term>,
        ttl: Duration,
        key: &Key,
        session: Session,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reports everything under the key, all nodes first, until it fails.
    fn watch(
        &self,
        term: &Self::Term,
        key: &Key,
        tell: impl Fn(Change) + Send + Sync,
    ) -> impl Future<Output = ()> + Send;
}

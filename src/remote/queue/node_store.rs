//! What a store has to be able to do.

use super::node_queue::NodeQueue;
use super::session_diff::Ops;
use super::waiters::Change;
use crate::remote::backend::{Session, StoreError};
use crate::remote::key::Key;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A store that keeps nodes in order of their creation.
pub(crate) trait NodeStore: Send + Sync + 'static {
    /// How long nodes last: until it is over, and so long after whoever keeps it up was last heard of.
    type Term: Send + Sync + 'static;

    /// A term under which nodes last at least for `ttl` after the step that made them, and whose process is missed soon after
    /// that.
    fn term(&self, ttl: Duration) -> impl Future<Output = Result<Arc<Self::Term>, StoreError>> + Send;

    /// Whether everything of this term goes.
    fn is_over(&self, term: &Self::Term) -> bool;

    /// Whether everything of this term has gone by itself, and nothing is to be taken down any more.
    fn is_gone(&self, term: &Self::Term) -> bool {
        self.is_over(term)
    }

    /// How long before `at` the term was last renewed, where steps do not renew it.
    fn age(&self, term: &Self::Term, at: Instant) -> Duration {
        let _ = (term, at);
        Duration::ZERO
    }

    /// Whether [`watch`](Self::watch) tells of one's own changes as well, before anything that happens later. Then nobody has to
    /// look who watches.
    const REPORTS: bool = false;

    /// The token of a node that was made in this term, where [`REPORTS`](Self::REPORTS).
    fn token(&self, term: &Self::Term, key: &Key, name: &str) -> Option<u64> {
        let _ = (term, key, name);
        None
    }

    /// Does all that, in order and at once, and says what lies under the key then; nothing, where it is not to look and need
    /// not. Where nobody has used the key, the limit is `limit`. Before it is known what became of an earlier one that failed,
    /// it is only asked to look.
    fn carry_out(
        &self,
        term: &Self::Term,
        key: &Key,
        limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> impl Future<Output = Result<Option<NodeQueue>, StoreError>> + Send;

    /// Takes down everything of this session, and the key with it if it was the last. The term is that of the session, if that
    /// is known; it may have been tried before. `ttl` is the session's.
    fn end(
        &self,
        term: Option<&Self::Term>,
        ttl: Duration,
        key: &Key,
        session: Session,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Tells of everything under the key, first all that there is, until it cannot any more.
    fn watch(
        &self,
        term: &Self::Term,
        key: &Key,
        tell: impl Fn(Change) + Send + Sync,
    ) -> impl Future<Output = ()> + Send;
}

//! The events under a key, as the server reports them.

use super::link::{Link, failed};
use super::names::{Name, Names};
use crate::queue::{Change, Node};
use tollgate::remote::StoreError;
use zookeeper_client::{AddWatchMode, EventType};

impl Link {
    pub(super) async fn watch(&self, key: &str, tell: impl Fn(Change) + Send) -> Result<(), StoreError> {
        let path = self.path(key);
        let mut watcher = self
            .client
            .watch(&path, AddWatchMode::PersistentRecursive)
            .await
            .map_err(failed)?;
        let mut wrapped = self.tell_all(&path, &tell).await?;
        loop {
            let event = watcher.changed().await;
            let name = event.path.strip_prefix(&*path).map(|name| name.trim_start_matches('/'));
            match (event.event_type, name) {
                // Events until the next connection are lost.
                (EventType::Session, _) => return Ok(()),
                (EventType::NodeDataChanged, Some("")) => wrapped = self.tell_all(&path, &tell).await?,
                (_, Some("")) => return Ok(()),
                (EventType::NodeCreated, Some(name)) => match Name::parse(name) {
                    Some(Name::Request { sequence, .. } | Name::Left { sequence, .. }) if wrapped || sequence < 0 => {
                        wrapped = self.tell_all(&path, &tell).await?;
                    }
                    Some(read) => tell(came(name, read)),
                    None => {}
                },
                (EventType::NodeDeleted, Some(name)) => match Name::parse(name) {
                    Some(Name::Present(session)) => tell(Change::Left(session)),
                    Some(Name::Request { .. }) => tell(Change::Went(name.into())),
                    _ => {}
                },
                _ => {}
            }
        }
    }

    /// Reports the full queue. True when sequence numbers do not show the order.
    async fn tell_all(&self, path: &str, tell: &(impl Fn(Change) + Send)) -> Result<bool, StoreError> {
        let seen = self.look(path).await.map_err(failed)?;
        let queue = self.read(path, &seen, None).await?;
        tell(Change::All(queue));
        Ok(Names::read(&seen.names).is_ok_and(|names| names.have_wrapped(seen.next)))
    }
}

fn came(name: &str, read: Name) -> Change {
    match read {
        Name::Present(session) => Change::Entered(session),
        Name::Request {
            session,
            request,
            units,
            sequence,
        } => Change::Came(Node {
            name: name.into(),
            place: sequence.unsigned_abs(),
            session,
            request,
            units,
            token: 0,
        }),
        Name::Left { units, sequence, .. } => Change::Shrank(sequence.unsigned_abs(), units),
    }
}

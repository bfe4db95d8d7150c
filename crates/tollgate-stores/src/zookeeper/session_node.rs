//! The begin and end of a session at a key.

use super::link::{ATTEMPTS, Link, done_before, failed, foreign, limit_of};
use super::names::{self, Name, Names};
use tollgate::remote::{Session, StoreError};
use zookeeper_client::{CreateMode, Error};

impl Link {
    /// Creates the node of the session.
    pub(super) async fn begin(&self, path: &str, limit: u64, session: Session) -> Result<(), StoreError> {
        let present = format!("{path}/{}", names::present(session));
        let ephemeral = CreateMode::Ephemeral.with_acls(self.access.acls());
        for _ in 0..ATTEMPTS {
            let there = match self.look(path).await {
                Ok(seen) => {
                    // Nothing is put under foreign nodes.
                    Names::read(&seen.names).map_err(|name| foreign(path, name))?;
                    limit_of(path, &seen.limit)?;
                    self.client.create(&present, b"", &ephemeral).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match there {
                Ok(()) => return Ok(()),
                Err(Error::NodeExists) => match self.client.check_stat(&present).await.map_err(failed)? {
                    Some(stat) if stat.ephemeral_owner == self.client.session_id().0 => return Ok(()),
                    Some(_) => {
                        // With all nodes that it made: pending requests of it are refused then.
                        let why = "an earlier attempt to begin has not expired yet".into();
                        return Err(StoreError::Unreachable { why });
                    }
                    None => continue,
                },
                Err(Error::NoNode) => {}
                Err(error) => return Err(failed(error)),
            }
            // The server deletes it when it has been empty for a while: when all sessions have died.
            let container = CreateMode::Container.with_acls(self.access.acls());
            let limit = limit.to_string();
            let mut made = self.client.create(path, limit.as_bytes(), &container).await;
            if made == Err(Error::NoNode) {
                // The prefix was deleted: it was there when the session was made. It is not checked earlier, since a user with
                // all rights under it need not be allowed to create it.
                self.make_above().await?;
                made = self.client.create(path, limit.as_bytes(), &container).await;
            }
            done_before(made, &Error::NodeExists)?;
        }
        let why = format!("`{path}` goes as soon as it is made").into();
        Err(StoreError::Unreachable { why })
    }

    /// Creates the nodes above those of keys.
    pub(super) async fn make_above(&self) -> Result<(), StoreError> {
        let above = CreateMode::Persistent.with_acls(self.access.acls());
        if let Some((above_all, _)) = self.prefix.rsplit_once('/')
            && !above_all.is_empty()
        {
            self.client.mkdir(above_all, &above).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Deletes all nodes of `session`, also unknown ones, and the key, if no other session is there.
    pub(super) async fn end(&self, key: &str, session: Session) -> Result<(), StoreError> {
        let path = self.path(key);
        for _ in 0..ATTEMPTS {
            // A server that has fallen behind may not know yet what another has confirmed.
            let synced = self.client.sync(&path);
            let look = self.look(&path);
            synced.await.map_err(failed)?;
            let seen = match look.await {
                Ok(seen) => seen,
                Err(Error::NoNode) => {
                    self.forget(&path, session);
                    return Ok(());
                }
                Err(error) => return Err(failed(error)),
            };
            let names = seen.names.iter();
            let ours = names.filter(|name| Name::parse(name).is_some_and(|read| read.is_of(session)));
            let deleted: Vec<_> = ours
                .map(|name| self.client.delete(&format!("{path}/{name}"), None))
                .collect();
            let done = deleted.is_empty();
            // A node without a limit is foreign.
            let is_ours = limit_of(&path, &seen.limit).is_ok();
            // Only the version that was seen, not a later one or a successor.
            let last = is_ours.then(|| self.client.delete(&path, Some(seen.version)));
            for deleted in deleted {
                done_before(deleted.await, &Error::NoNode)?;
            }
            let gone = match last {
                Some(last) => match last.await {
                    Ok(()) | Err(Error::NoNode) => true,
                    Err(Error::NotEmpty | Error::BadVersion) => false,
                    Err(error) => return Err(failed(error)),
                },
                None => false,
            };
            if done || gone {
                self.forget(&path, session);
                return Ok(());
            }
        }
        let why = format!("what lies under `{path}` changes all the time").into();
        Err(StoreError::Unreachable { why })
    }

    /// Forgets `session` here.
    fn forget(&self, path: &str, session: Session) {
        let is_ours = |name: &str| Name::parse(name).is_some_and(|read| read.is_of(session));
        self.marks.lock().retain(|request, _| {
            let name = request.strip_prefix(path).and_then(|name| name.strip_prefix('/'));
            !name.is_some_and(is_ours)
        });
        let mut created = self.created.lock();
        if let Some(known) = created.get_mut(path) {
            known.retain(|name, _| !is_ours(name));
            if known.is_empty() {
                created.remove(path);
            }
        }
    }
}

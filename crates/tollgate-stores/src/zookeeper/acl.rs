//! The check of the rights that we need, before anything is done.

use super::link::{Access, failed};
use tollgate::remote::StoreError;
use zookeeper_client::{Client, CreateMode, Error, MultiWriteError};

/// Checks that nodes may be created and deleted under the prefix, by doing both in one transaction, which leaves nothing.
/// `above` is the prefix, and is created if it is missing; it is empty where all nodes lie under the root.
pub(super) async fn check(client: &Client, access: Access, above: &str) -> Result<(), StoreError> {
    // Names made of keys have no dots.
    let path = format!("{above}/.rights-{}", client.session_id());
    let tried = tried(client, access, &path).await;
    let missing = match tried {
        Ok(()) => return Ok(()),
        Err(MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. })
            if source == Error::NoNode && !above.is_empty() =>
        {
            let made = client
                .mkdir(above, &CreateMode::Persistent.with_acls(access.acls()))
                .await;
            match made {
                // The creator of the prefix has all rights within it.
                Ok(()) => return Ok(()),
                Err(Error::NoAuth) => format!("to make `{above}`"),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(MultiWriteError::OperationFailed {
            index,
            source: Error::NoAuth,
        }) => {
            let what = if index == 0 { "make" } else { "delete" };
            format!("to {what} nodes under `{}`", if above.is_empty() { "/" } else { above })
        }
        Err(error) => return Err(failed(error.into())),
    };
    let why = format!("we have no right {missing}").into();
    Err(StoreError::Refused { why })
}

async fn tried(client: &Client, access: Access, path: &str) -> Result<(), MultiWriteError> {
    let mut writer = client.new_multi_writer();
    writer.add_create(path, b"", &CreateMode::Ephemeral.with_acls(access.acls()))?;
    writer.add_delete(path, None)?;
    writer.commit().await.map(drop)
}

//! The stores that tests run at, each with the tests that are the same for several of them. A handle stands for a process.

use std::future::Future;
use std::net::SocketAddr;
use tollgate::remote::{Backend, Key};

/// The place of a store.
pub(crate) trait Place {
    type Store: Backend + Clone;

    fn server() -> SocketAddr;

    fn at(address: SocketAddr) -> Self::Store;

    /// The number of keys at the server under this name.
    fn keys(key: &Key) -> impl Future<Output = usize>;

    fn store() -> Self::Store {
        Self::at(Self::server())
    }
}

/// The tests of a module, at this place.
macro_rules! tests {
    ($from:ident, $place:ty; $($name:ident)*) => {
        $(
            #[tokio::test]
            async fn $name() {
                $crate::$from::$name::<$place>().await;
            }
        )*
    };
}
pub(crate) use tests;

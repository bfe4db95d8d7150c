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

pub(crate) mod redis {
    use crate::redis::Redis as Program;
    use crate::rig::server::Store as _;
    use tollgate::remote::Key;
    use tollgate_stores::Redis;
    pub(crate) struct Here;
    impl super::Place for Here {
        type Store = Redis;
        fn server() -> std::net::SocketAddr {
            crate::store::server()
        }
        fn at(address: std::net::SocketAddr) -> Redis {
            crate::store::at(address)
        }
        async fn keys(key: &Key) -> usize {
            let keys = Program.keys(Self::server()).expect("a server that answers");
            let is_of = |name: &&String| name.contains(&format!("{{{key}}}")) || name.contains(&format!("{{{key}."));
            keys.iter().filter(is_of).count()
        }
    }
    crate::rates_shared::shared!(Here);
    crate::leased::leased!(Here);
}

pub(crate) mod postgres {
    use tollgate::remote::Key;
    use tollgate_stores::Postgres;
    pub(crate) struct Here;
    impl super::Place for Here {
        type Store = Postgres;
        fn server() -> std::net::SocketAddr {
            crate::postgres::server()
        }
        fn at(address: std::net::SocketAddr) -> Postgres {
            crate::postgres::at(address)
        }
        async fn keys(key: &Key) -> usize {
            crate::postgres::keys(key).await
        }
    }
    crate::rates_shared::shared!(Here);
    crate::leased::leased!(Here);
    crate::change::lowered!(Here);
}

pub(crate) mod consul {
    use tollgate::remote::Key;
    use tollgate_stores::Consul;
    pub(crate) struct Here;
    impl super::Place for Here {
        type Store = Consul;
        fn server() -> std::net::SocketAddr {
            crate::consul_store::server()
        }
        fn at(address: std::net::SocketAddr) -> Consul {
            crate::consul_store::Kind::at(address)
        }
        async fn keys(key: &Key) -> usize {
            crate::consul_store::keys(key).len()
        }
    }
    crate::leased::leased!(Here);
    crate::leased::unasked!(Here);
    crate::change::lowered!(Here);
}

pub(crate) mod etcd {
    use tollgate::remote::Key;
    use tollgate_stores::Etcd;
    pub(crate) struct Here;
    impl super::Place for Here {
        type Store = Etcd;
        fn server() -> std::net::SocketAddr {
            crate::etcd_sync::address()
        }
        fn at(address: std::net::SocketAddr) -> Etcd {
            crate::etcd_sync::at(address)
        }
        async fn keys(key: &Key) -> usize {
            crate::etcd_sync::count(key).await
        }
    }
    crate::leased::leased!(Here);
    crate::leased::unasked!(Here);
    crate::change::lowered!(Here);
}

pub(crate) mod zookeeper {
    use tollgate::remote::Key;
    use tollgate_stores::Zookeeper;
    pub(crate) struct Here;
    impl super::Place for Here {
        type Store = Zookeeper;
        fn server() -> std::net::SocketAddr {
            crate::zookeeper_sync::address()
        }
        fn at(address: std::net::SocketAddr) -> Zookeeper {
            crate::zookeeper_sync::at(address)
        }
        async fn keys(key: &Key) -> usize {
            let client = crate::zookeeper::raw(Self::server()).await;
            let under = format!("{key}.");
            let names = crate::zookeeper::children(&client, "/tollgate").await.unwrap();
            names.iter().filter(|name| name.starts_with(&under)).count()
        }
    }
    crate::leased::leased!(Here);
    crate::leased::unasked!(Here);
    crate::change::lowered!(Here);
}

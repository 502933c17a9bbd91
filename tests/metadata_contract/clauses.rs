//! The clauses. Each keeps below a node named after it, so that several can use one server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pulsegate::metadata::{
    CreateMode, EmbeddedMetadata, Event, Expected, MemoryLog, MetadataError, MetadataStore, Node,
    NodePath, Owner, SessionState, Stat, SystemClock, Version, Watch, WatchScope,
};
use tokio::time::timeout;

use crate::engines::{Engine, running};

pub(crate) async fn m1_versions_begin_at_0_and_grow_by_1(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let path = path("/m1/a");
    assert_eq!(store.get(&path).await, Ok(None));
    let made = store
        .create(&path, value("0"), CreateMode::Persistent)
        .await
        .expect("made");
    assert_eq!(
        (&made.path, made.stat.version, made.stat.owner),
        (&path, Version(0), Owner::Nobody)
    );
    for version in 1..4_u32 {
        let text = version.to_string();
        let stat = store
            .put(&path, value(&text), Expected::Any)
            .await
            .expect("put");
        assert_eq!(stat.version, Version(version));
        assert_eq!(stat.created, made.stat.created);
        assert!(stat.modified >= stat.created);
        let node = store.get(&path).await.expect("read").expect("there");
        assert_eq!(
            node,
            Node {
                value: value(&text),
                stat
            }
        );
    }
    store.delete(&path, None).await.expect("deleted");
    assert_eq!(store.get(&path).await, Ok(None));
    let again = store
        .put(&path, value("x"), Expected::Any)
        .await
        .expect("made by a put");
    assert_eq!(
        again.version,
        Version(0),
        "a node made again begins at 0 again"
    );
}

pub(crate) async fn m2_a_put_changes_only_the_version_it_expects(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let path = path("/m2/a");
    let expect = |version| Expected::Version(Version(version));
    assert_eq!(
        store.put(&path, value("x"), expect(0)).await,
        Err(MetadataError::NotFound(path.clone())),
        "no node has a version"
    );
    store
        .put(&path, value("a"), Expected::Absent)
        .await
        .expect("made");
    assert_eq!(
        store.put(&path, value("x"), expect(1)).await,
        Err(MetadataError::BadVersion(path.clone()))
    );
    assert_eq!(
        store
            .put(&path, value("b"), expect(0))
            .await
            .expect("put")
            .version,
        Version(1)
    );
    assert_eq!(
        store.put(&path, value("x"), expect(0)).await,
        Err(MetadataError::BadVersion(path.clone()))
    );
    let node = store.get(&path).await.expect("read").expect("there");
    assert_eq!((node.value, node.stat.version), (value("b"), Version(1)));
}

pub(crate) async fn m2_one_of_several_puts_of_one_version_succeeds(engine: &Engine) {
    let (first, second) = (engine.connect().await, engine.connect_another().await);
    let path = path("/m2-race/a");
    first
        .store()
        .put(&path, value("a"), Expected::Absent)
        .await
        .expect("made");
    let expected = Expected::Version(Version(0));
    let stores = [first.store(), second.store(), first.store(), second.store()];
    let [a, b, c, d] = stores.map(|store| store.put(&path, value("b"), expected));
    let results: [_; 4] = tokio::join!(a, b, c, d).into();
    let bad_version = Err(MetadataError::BadVersion(path.clone()));
    assert_eq!(
        results.iter().filter(|result| result.is_ok()).count(),
        1,
        "{results:?}"
    );
    assert_eq!(
        results
            .iter()
            .filter(|result| **result == bad_version)
            .count(),
        3,
        "{results:?}"
    );
}

pub(crate) async fn m3_what_exists_is_not_made_again(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let path = path("/m3/a");
    store
        .put(&path, value("a"), Expected::Absent)
        .await
        .expect("made");
    let exists = MetadataError::AlreadyExists(path.clone());
    for mode in [CreateMode::Persistent, CreateMode::Ephemeral] {
        assert_eq!(
            store.create(&path, value("x"), mode).await,
            Err(exists.clone())
        );
    }
    assert_eq!(
        store.put(&path, value("x"), Expected::Absent).await,
        Err(exists)
    );
    let node = store.get(&path).await.expect("read").expect("there");
    assert_eq!((node.value, node.stat.version), (value("a"), Version(0)));
}

pub(crate) async fn m4_missing_nodes_above_are_made(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    store
        .put(&path("/m4/a/b/c"), value("x"), Expected::Any)
        .await
        .expect("made");
    for above in ["/m4", "/m4/a", "/m4/a/b"] {
        let node = store.get(&path(above)).await.expect("read").expect(above);
        assert_eq!(
            (node.value, node.stat.version, node.stat.owner),
            (value(""), Version(0), Owner::Nobody)
        );
    }
    let made = store
        .create(&path("/m4/e/f"), value(""), CreateMode::Ephemeral)
        .await
        .expect("made");
    assert_eq!(made.stat.owner, Owner::ThisSession);
    let above = store
        .get(&path("/m4/e"))
        .await
        .expect("read")
        .expect("there");
    assert_eq!(
        above.stat.owner,
        Owner::Nobody,
        "only the node itself is ephemeral"
    );
}

pub(crate) async fn m5_children_are_sorted_names(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    assert_eq!(store.children(&path("/m5/none")).await, Ok(Vec::new()));
    // Names whose order among paths differs from that among names, and nodes beside that begin alike.
    for text in [
        "b", "b-c", "b/z/y", "b.d", "b0", "a/x", "a b", "\u{fc}", "B", "a+%2F",
    ] {
        store
            .put(&path(&format!("/m5/n/{text}")), value(""), Expected::Any)
            .await
            .expect("made");
    }
    store
        .put(&path("/m5/n-beside/x"), value(""), Expected::Any)
        .await
        .expect("made");
    store
        .put(&path("/m5/n0"), value(""), Expected::Any)
        .await
        .expect("made");
    let names = store.children(&path("/m5/n")).await.expect("read");
    assert_eq!(
        names,
        ["B", "a", "a b", "a+%2F", "b", "b-c", "b.d", "b0", "\u{fc}"]
    );
    assert_eq!(
        store.children(&path("/m5/n/b")).await,
        Ok(vec!["z".to_owned()])
    );
    assert_eq!(store.children(&path("/m5/n/b0")).await, Ok(Vec::new()));
    let top = store.children(&NodePath::root()).await.expect("read");
    assert!(top.contains(&"m5".to_owned()), "{top:?}");
}

pub(crate) async fn m6_a_refused_delete_changes_nothing(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let path = path("/m6/a");
    assert_eq!(
        store.delete(&path, None).await,
        Err(MetadataError::NotFound(path.clone()))
    );
    store
        .put(&path, value("a"), Expected::Any)
        .await
        .expect("made");
    let below = path.child("b").expect("valid");
    store
        .put(&below, value(""), Expected::Any)
        .await
        .expect("made");
    assert_eq!(
        store.delete(&path, None).await,
        Err(MetadataError::NotEmpty(path.clone()))
    );
    assert_eq!(
        store.delete(&path, Some(Version(1))).await,
        Err(MetadataError::BadVersion(path.clone())),
        "the version is looked at before what is below"
    );
    assert!(store.get(&path).await.expect("read").is_some());
    store
        .delete(&below, Some(Version(0)))
        .await
        .expect("deleted");
    assert_eq!(
        store.delete(&path, Some(Version(1))).await,
        Err(MetadataError::BadVersion(path.clone()))
    );
    store
        .delete(&path, Some(Version(0)))
        .await
        .expect("deleted");
    assert_eq!(store.get(&path).await, Ok(None));
}

pub(crate) async fn m7_a_recursive_delete_leaves_nothing_below_and_all_beside(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    for text in ["n/a/b", "n/a/c/d", "n/e", "n-beside", "n0/x", "n.y/z"] {
        store
            .put(&path(&format!("/m7/{text}")), value(""), Expected::Any)
            .await
            .expect("made");
    }
    let ephemeral = path("/m7/n/ephemeral");
    store
        .create(&ephemeral, value(""), CreateMode::Ephemeral)
        .await
        .expect("made");
    store
        .delete_recursive(&path("/m7/n"))
        .await
        .expect("deleted");
    for gone in ["/m7/n", "/m7/n/a", "/m7/n/a/c/d", "/m7/n/ephemeral"] {
        assert_eq!(store.get(&path(gone)).await, Ok(None), "{gone}");
    }
    assert_eq!(
        store.children(&path("/m7")).await.expect("read"),
        ["n-beside", "n.y", "n0"]
    );
    assert!(store.get(&path("/m7/n0/x")).await.expect("read").is_some());
    store
        .delete_recursive(&path("/m7/n"))
        .await
        .expect("nothing to delete is no error");
    store
        .delete_recursive(&path("/m7/n0/x"))
        .await
        .expect("a node without any below");
    assert_eq!(store.children(&path("/m7/n0")).await, Ok(Vec::new()));
}

pub(crate) async fn m7_the_root_stays(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let root = NodePath::root();
    assert_eq!(store.delete(&root, None).await, Err(MetadataError::Root));
    assert_eq!(
        store.delete_recursive(&root).await,
        Err(MetadataError::Root)
    );
    assert_eq!(
        store.create(&root, value(""), CreateMode::Persistent).await,
        Err(MetadataError::Root)
    );
    assert!(store.get(&root).await.expect("read").is_some());
}

pub(crate) async fn m8_sequential_numbers_count_the_nodes_made(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let mut names = Vec::new();
    let sequential = [
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
    ];
    for mode in sequential {
        let made = store
            .create(&path("/m8/n/s-"), value(""), mode)
            .await
            .expect("made");
        names.push(made.path.name().to_owned());
    }
    // Every node that is made takes a number, whatever it is named, and no deletion gives one back.
    store
        .put(&path("/m8/n/other"), value(""), Expected::Any)
        .await
        .expect("made");
    store
        .put(&path("/m8/n/other"), value("set"), Expected::Any)
        .await
        .expect("set");
    store
        .put(&path("/m8/n/s-0000000000/below"), value(""), Expected::Any)
        .await
        .expect("made");
    store
        .delete(&path("/m8/n/s-0000000001"), None)
        .await
        .expect("deleted");
    store
        .delete(&path("/m8/n/other"), None)
        .await
        .expect("deleted");
    let made = store
        .create(
            &path("/m8/n/t"),
            value("v"),
            CreateMode::PersistentSequential,
        )
        .await
        .expect("made");
    names.push(made.path.name().to_owned());
    assert_eq!(names, ["s-0000000000", "s-0000000001", "t0000000003"]);
    let node = store.get(&made.path).await.expect("read").expect("there");
    assert_eq!(node.value, value("v"));
    assert_eq!(store.get(&path("/m8/n/t")).await, Ok(None));
    // A number of its own is no protection against a name that is taken.
    let taken = path("/m8/n/u0000000005");
    store
        .put(&taken, value(""), Expected::Any)
        .await
        .expect("made");
    let refused = store
        .create(
            &path("/m8/n/u"),
            value(""),
            CreateMode::PersistentSequential,
        )
        .await;
    // ZooKeeper does not say which name it tried.
    assert!(
        matches!(refused, Err(MetadataError::AlreadyExists(_))),
        "{refused:?}"
    );
    // A name may consist of the number alone.
    let child = path("/m8/n/s-0000000000");
    let next = store
        .create(
            &child.child("-").expect("valid"),
            value(""),
            CreateMode::PersistentSequential,
        )
        .await
        .expect("made");
    assert_eq!(next.path.name(), "-0000000001");
}

pub(crate) async fn m9_ephemeral_nodes_end_with_their_session(engine: &Engine) {
    if engine.has_one_session() {
        return;
    }
    let (first, second) = (engine.connect().await, engine.connect().await);
    let (mine, kept, other) = (path("/m9/mine"), path("/m9/kept"), path("/m9/other"));
    first
        .store()
        .create(&mine, value("m"), CreateMode::Ephemeral)
        .await
        .expect("made");
    first
        .store()
        .put(&mine, value("n"), Expected::Any)
        .await
        .expect("put");
    first
        .store()
        .put(&kept, value("k"), Expected::Any)
        .await
        .expect("made");
    second
        .store()
        .create(&other, value("o"), CreateMode::Ephemeral)
        .await
        .expect("made");
    second.store().sync(&mine).await.expect("synced");
    let seen = second
        .store()
        .get(&mine)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(
        (seen.value, seen.stat.owner),
        (value("n"), Owner::OtherSession)
    );
    let own = first
        .store()
        .get(&mine)
        .await
        .expect("read")
        .expect("there");
    assert_eq!(own.stat.owner, Owner::ThisSession);

    let mut watch = second
        .store()
        .watch(&mine, WatchScope::Node)
        .await
        .expect("watched");
    first.end().await;
    assert_eq!(next(&mut watch).await, Event::Deleted(mine.clone()));
    assert_eq!(second.store().get(&mine).await, Ok(None));
    assert!(second.store().get(&kept).await.expect("read").is_some());
    assert!(second.store().get(&other).await.expect("read").is_some());
    let again = second
        .store()
        .create(&mine, value(""), CreateMode::Ephemeral)
        .await
        .expect("made");
    assert_eq!(again.stat.owner, Owner::ThisSession);
}

pub(crate) async fn m9_nothing_can_be_below_an_ephemeral_node(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let ephemeral = path("/m9-below/e");
    store
        .create(&ephemeral, value(""), CreateMode::Ephemeral)
        .await
        .expect("made");
    let refused = Err(MetadataError::BelowEphemeral(ephemeral.clone()));
    for below in ["/m9-below/e/a", "/m9-below/e/a/b"] {
        let made = store
            .put(&path(below), value(""), Expected::Any)
            .await
            .map(drop);
        assert_eq!(made, refused, "{below}");
    }
    assert_eq!(store.children(&ephemeral).await, Ok(Vec::new()));
}

pub(crate) async fn m10_a_session_sees_changes_of_others_after_a_sync(engine: &Engine) {
    let (first, second) = (engine.connect().await, engine.connect_another().await);
    let path = path("/m10/a");
    for round in 0..20 {
        let text = round.to_string();
        first
            .store()
            .put(&path, value(&text), Expected::Any)
            .await
            .expect("put");
        let own = first
            .store()
            .get(&path)
            .await
            .expect("read")
            .expect("there");
        assert_eq!(own.value, value(&text), "its own change at once");
        second.store().sync(&path).await.expect("synced");
        let seen = second
            .store()
            .get(&path)
            .await
            .expect("read")
            .expect("there");
        assert_eq!(seen.value, value(&text));
    }
}

pub(crate) async fn m11_a_watch_on_a_node_is_told_of_it_and_its_children(engine: &Engine) {
    let (watching, changing) = (engine.connect().await, engine.connect_another().await);
    let store = changing.store();
    let node = path("/m11/a");
    let child = path("/m11/a/b");
    // The parent is there, so that ZooKeeper can be asked to watch what is not there yet.
    store
        .put(&path("/m11"), value(""), Expected::Any)
        .await
        .expect("made");
    let mut watch = watching
        .store()
        .watch(&node, WatchScope::Node)
        .await
        .expect("watched");
    store
        .put(&node, value("1"), Expected::Any)
        .await
        .expect("made");
    assert_eq!(next(&mut watch).await, Event::Created(node.clone()));
    assert!(
        watching.store().get(&node).await.expect("read").is_some(),
        "told after it can be read"
    );
    store
        .put(&node, value("2"), Expected::Any)
        .await
        .expect("set");
    assert_eq!(next(&mut watch).await, Event::Modified(node.clone()));
    store
        .put(&child, value(""), Expected::Any)
        .await
        .expect("made");
    assert_eq!(next(&mut watch).await, Event::ChildrenChanged(node.clone()));
    // Neither of these is the node's or of its direct children.
    store
        .put(&child, value("3"), Expected::Any)
        .await
        .expect("set");
    store
        .put(&path("/m11/a/b/c"), value(""), Expected::Any)
        .await
        .expect("made");
    store
        .put(&path("/m11/a-beside"), value(""), Expected::Any)
        .await
        .expect("made");
    store
        .delete(&path("/m11/a/b/c"), None)
        .await
        .expect("deleted");
    store.delete(&child, None).await.expect("deleted");
    assert_eq!(next(&mut watch).await, Event::ChildrenChanged(node.clone()));
    store.delete(&node, None).await.expect("deleted");
    assert_eq!(next(&mut watch).await, Event::Deleted(node.clone()));
    store
        .put(&node, value("1"), Expected::Any)
        .await
        .expect("made");
    assert_eq!(
        next(&mut watch).await,
        Event::Created(node),
        "a watch outlives its node"
    );
}

pub(crate) async fn m11_a_watch_on_a_subtree_is_told_of_all_below(engine: &Engine) {
    let (watching, changing) = (engine.connect().await, engine.connect_another().await);
    let store = changing.store();
    let top = path("/m11-tree/a");
    let (b, c) = (path("/m11-tree/a/b"), path("/m11-tree/a/b/c"));
    store
        .put(&top, value(""), Expected::Any)
        .await
        .expect("made");
    let mut watch = watching
        .store()
        .watch(&top, WatchScope::Subtree)
        .await
        .expect("watched");
    store
        .put(&path("/m11-tree/a-beside"), value(""), Expected::Any)
        .await
        .expect("made");
    store.put(&c, value(""), Expected::Any).await.expect("made");
    store.put(&c, value("1"), Expected::Any).await.expect("set");
    store.delete_recursive(&b).await.expect("deleted");
    let expected = [
        Event::Created(b.clone()),
        Event::ChildrenChanged(top.clone()),
        Event::Created(c.clone()),
        Event::ChildrenChanged(b.clone()),
        Event::Modified(c.clone()),
        Event::Deleted(c),
        Event::ChildrenChanged(b.clone()),
        Event::Deleted(b),
        Event::ChildrenChanged(top),
    ];
    for event in expected {
        assert_eq!(next(&mut watch).await, event);
    }
}

pub(crate) async fn m12_a_session_that_ends_says_so(engine: &Engine) {
    let connection = engine.connect().await;
    let mut session = connection.store().session();
    let before = *session.borrow_and_update();
    assert_eq!(before.state, SessionState::Connected);
    if engine.has_one_session() {
        return;
    }
    connection.end().await;
    let expired = session.wait_for(|session| session.state == SessionState::Expired);
    // Or all of the connection is gone, and the receiver with it.
    let _ = timeout(PATIENCE, expired).await.expect("told in time");
}

pub(crate) async fn empty_and_large_values_come_back(engine: &Engine) {
    let connection = engine.connect().await;
    let store = connection.store();
    let path = path("/values/a");
    for len in [0, 1, 1000, 900_000] {
        let value = Bytes::from(vec![0xa5; len]);
        store
            .put(&path, value.clone(), Expected::Any)
            .await
            .expect("put");
        let node = store.get(&path).await.expect("read").expect("there");
        assert!(node.value == value, "{len}");
    }
}

pub(crate) async fn m13_what_was_answered_is_there_after_a_restart() {
    let log = Arc::new(MemoryLog::new());
    let store = running(EmbeddedMetadata::recover(
        [],
        log.clone(),
        Arc::new(SystemClock::new()),
    ));
    let before = m13_before(&*store).await;
    let pairs = log.pairs();

    let again = MemoryLog::new();
    let recovered = EmbeddedMetadata::recover(pairs, Arc::new(again), Arc::new(SystemClock::new()));
    m13_after(&*running(recovered), before).await;
}

/// Changes of all kinds; what the node that is kept is then.
pub(crate) async fn m13_before(store: &dyn MetadataStore) -> Stat {
    let (kept, gone) = (path("/m13/kept"), path("/m13/gone"));
    store
        .put(&kept, value("1"), Expected::Any)
        .await
        .expect("made");
    store
        .put(&gone, value(""), Expected::Any)
        .await
        .expect("made");
    let stat = store
        .put(&kept, value("2"), Expected::Any)
        .await
        .expect("set");
    store.delete(&gone, None).await.expect("deleted");
    store
        .create(&path("/m13/e"), value(""), CreateMode::EphemeralSequential)
        .await
        .expect("made");
    stat
}

/// What there is of them in another process.
pub(crate) async fn m13_after(store: &dyn MetadataStore, stat: Stat) {
    let kept = path("/m13/kept");
    let node = store.get(&kept).await.expect("read").expect("there");
    assert_eq!(
        node,
        Node {
            value: value("2"),
            stat
        }
    );
    assert_eq!(store.children(&path("/m13")).await.expect("read"), ["kept"]);
    let next = store
        .create(&path("/m13/e"), value(""), CreateMode::EphemeralSequential)
        .await
        .expect("made");
    assert_eq!(
        next.path.name(),
        "e0000000003",
        "no number comes twice, over restarts neither"
    );
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect(text)
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// The next event, which has to come.
async fn next(watch: &mut Watch) -> Event {
    let event = timeout(PATIENCE, watch.next()).await;
    event
        .expect("an event in time")
        .expect("the store is there")
}

/// Only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(30);

//! The path of a node, as ZooKeeper allows it.

use std::fmt;
use std::sync::Arc;

/// A path such as `/admin/policies/team`: one or more names, each behind a slash; or `/`, the root. Cheap to clone.
///
/// Ordered as text: what is below a path comes behind it, though not always right behind it (`/a`, `/a-b`, `/a/c`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

/// Why a text is no path of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("a path has to begin with a slash")]
    NotAbsolute,
    /// There is nothing between two slashes, or behind the last one.
    #[error("a path has an empty name")]
    EmptyName,
    /// A name is `.` or `..`.
    #[error("a path has a name of dots")]
    Dots,
    /// A name holds a character that ZooKeeper refuses: a control character or one without meaning.
    #[error("a path holds the character {0:?}")]
    Character(char),
    /// A name holds a slash where only one name is asked for.
    #[error("a name holds a slash")]
    Slash,
    /// The path is longer than [`PATH_LEN_MAX`].
    #[error("a path is longer than {PATH_LEN_MAX} bytes")]
    TooLong,
}

impl NodePath {
    /// The root, `/`. It always exists.
    #[must_use]
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Reads a path.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let names = text.strip_prefix('/').ok_or(PathError::NotAbsolute)?;
        if text.len() > PATH_LEN_MAX {
            return Err(PathError::TooLong);
        }
        if !names.is_empty() {
            names.split('/').try_for_each(check_name)?;
        }
        Ok(Self(text.into()))
    }

    /// The path of a node directly below.
    ///
    /// # Errors
    /// When `name` is no name, or the path becomes too long.
    pub fn child(&self, name: &str) -> Result<Self, PathError> {
        if name.contains('/') {
            return Err(PathError::Slash);
        }
        check_name(name)?;
        let above = if self.is_root() { "" } else { &*self.0 };
        if above.len() + 1 + name.len() > PATH_LEN_MAX {
            return Err(PathError::TooLong);
        }
        Ok(Self(format!("{above}/{name}").into()))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last name; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    /// The path above; none for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let (above, _) = self.0.rsplit_once('/')?;
        Some(if above.is_empty() {
            Self::root()
        } else {
            Self(above.into())
        })
    }

    /// Whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// What follows `above` and a slash, when this path is below it.
    #[must_use]
    pub fn below(&self, above: &Self) -> Option<&str> {
        if above.is_root() {
            return self.0.strip_prefix('/').filter(|rest| !rest.is_empty());
        }
        self.0.strip_prefix(&*above.0)?.strip_prefix('/')
    }

    /// What stands before all paths below this one in order, and behind the path itself. No path of a node, but for the root.
    pub(super) fn before_all_below(&self) -> Self {
        if self.is_root() {
            return Self("/\u{1}".into());
        }
        Self(format!("{}/", self.0).into())
    }

    /// What stands behind all paths below this one in order, and before every other one that is behind it.
    pub(super) fn behind_all_below(&self) -> Self {
        // The character that follows the slash.
        Self(format!("{}0", self.0.trim_end_matches('/')).into())
    }

    /// This path with digits behind its last name. They are allowed in every name, and few.
    pub(super) fn with_digits(&self, digits: &str) -> Self {
        Self(format!("{}{digits}", self.0).into())
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// The rules of ZooKeeper's `PathUtils.validatePath` for one name. (It works on UTF-16 and therefore refuses everything
/// beyond U+FFFF as well. Nobody notices: what Pulsar stores under free names it URL-encodes.)
fn check_name(name: &str) -> Result<(), PathError> {
    match name {
        "" => return Err(PathError::EmptyName),
        "." | ".." => return Err(PathError::Dots),
        _ => {}
    }
    let refused = |c: &char| matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    match name.chars().find(refused) {
        Some(character) => Err(PathError::Character(character)),
        None => Ok(()),
    }
}

/// Longest path, in bytes: a topic and a subscription of the longest names, URL-encoded, and room beside.
pub const PATH_LEN_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_zookeeper_takes_and_refuses_the_rest() {
        for text in [
            "/", "/a", "/a/b.c", "/a/...", "/a/ b", "/%2F+*", "/\u{fc}", "/a\u{a0}",
        ] {
            assert_eq!(NodePath::parse(text).expect(text).as_str(), text);
        }
        for (text, error) in [
            ("", PathError::NotAbsolute),
            ("a", PathError::NotAbsolute),
            ("//", PathError::EmptyName),
            ("/a/", PathError::EmptyName),
            ("/a//b", PathError::EmptyName),
            ("/a/./b", PathError::Dots),
            ("/a/..", PathError::Dots),
            ("/a\0", PathError::Character('\0')),
            ("/a\n", PathError::Character('\n')),
            ("/\u{7f}", PathError::Character('\u{7f}')),
            ("/\u{e000}", PathError::Character('\u{e000}')),
            ("/\u{fff0}", PathError::Character('\u{fff0}')),
            ("/\u{1f600}", PathError::Character('\u{1f600}')),
        ] {
            assert_eq!(NodePath::parse(text), Err(error), "{text:?}");
        }
        let long = format!("/{}", "x".repeat(PATH_LEN_MAX));
        assert_eq!(NodePath::parse(&long), Err(PathError::TooLong));
    }

    #[test]
    fn knows_what_is_above_and_below() {
        let path = NodePath::parse("/a/b/c").expect("valid");
        let above = path.parent().expect("not the root");
        assert_eq!((above.as_str(), path.name()), ("/a/b", "c"));
        assert_eq!(path.below(&above), Some("c"));
        assert_eq!(path.below(&NodePath::root()), Some("a/b/c"));
        assert_eq!(above.below(&path), None);
        assert_eq!(path.below(&path), None);
        assert_eq!(NodePath::root().below(&NodePath::root()), None);
        let sibling = NodePath::parse("/a/bc").expect("valid");
        assert_eq!(
            sibling.below(&above),
            None,
            "a name is no prefix of a longer one"
        );
        assert_eq!(above.child("c"), Ok(path));
        assert_eq!(
            NodePath::root().child("a").map(|path| path.to_string()),
            Ok("/a".into())
        );
        assert_eq!(above.child("c/d"), Err(PathError::Slash));
        assert_eq!(above.child(".."), Err(PathError::Dots));
        assert_eq!(NodePath::root().parent(), None);
        assert_eq!(
            (NodePath::root().name(), NodePath::root().is_root()),
            ("", true)
        );
    }
}

//! Paths to handlers.

use std::collections::BTreeMap;
use std::fmt;

/// An answer to a GET; HEAD gets the same without the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code, 200 to 599.
    pub status: u16,
    /// Value of the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Response {
    /// A plain text answer.
    #[must_use]
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

type Handler = Box<dyn Fn() -> Response + Send + Sync>;

/// A map of exact paths to handlers. Handlers run on the runtime: they must not block.
#[derive(Default)]
pub struct Router {
    routes: BTreeMap<String, Handler>,
}

impl Router {
    /// A router that answers 404 to everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path; one added before is replaced.
    #[must_use]
    pub fn route(
        mut self,
        path: &str,
        handler: impl Fn() -> Response + Send + Sync + 'static,
    ) -> Self {
        self.routes.insert(path.to_owned(), Box::new(handler));
        self
    }

    /// The handler of `path`.
    pub(super) fn find(&self, path: &str) -> Option<&(dyn Fn() -> Response + Send + Sync)> {
        self.routes.get(path).map(|handler| &**handler)
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.routes.keys()).finish()
    }
}

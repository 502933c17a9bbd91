//! Rules of the source tree that the compiler does not check: which module may use which, what pure modules may name,
//! where files are read, how long a file may be, and that documents name only paths that exist.
//!
//! Each rule is a function from text to violations, tested below on a text that violates it. A new edge between modules
//! is a change of the design: change [`LAYERS`] in the same commit and say why.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The modules of the crate and their layers: a module may use any of a lower layer and none of its own.
const LAYERS: &[(&str, u8)] = &[
    ("main", 13),
    ("cli", 12),
    ("app", 11),
    ("perf", 11),
    ("admin", 10),
    ("broker", 9),
    ("gateway", 9),
    ("managed_ledger", 8),
    ("schema", 8),
    ("policies", 8),
    ("client", 8),
    ("ledger", 7),
    ("lookup", 7),
    ("auth", 7),
    ("metadata", 6),
    ("journal", 5),
    ("http", 4),
    ("net", 3),
    ("disk", 2),
    ("telemetry", 2),
    ("config", 1),
    ("protocol", 1),
    ("naming", 0),
];
/// Helpers for tests: may use layers up to this one, and only tests may use them.
const TESTING: &str = "testing";
const TESTING_MAY_USE: u8 = 8;

/// Modules that are pure as a whole; so is every file named `state.rs`.
const PURE_MODULES: &[&str] = &["naming", "protocol", "auth", "managed_ledger"];
/// Single files that are pure.
const PURE_FILES: &[&str] = &[
    "src/journal/change_log.rs",
    "src/journal/checkpoint.rs",
    "src/journal/commit.rs",
    "src/journal/format.rs",
    "src/journal/indexing.rs",
    "src/journal/kernel.rs",
    "src/journal/recovery.rs",
    "src/journal/segment.rs",
    "src/journal/superblock.rs",
    "src/ledger/embedded/gc.rs",
    "src/ledger/embedded/index.rs",
    "src/ledger/embedded/options.rs",
    "src/ledger/embedded/packed_runs.rs",
    "src/ledger/embedded/segment_index.rs",
];
/// What pure code must not name: the runtime, files, sockets, threads and the environment.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio_util",
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::process",
    "std::thread",
    "socket2",
];

/// Modules that may open files.
const MAY_USE_FILES: &[&str] = &["disk", "config", "cli", "perf"];

/// Files that drive something: they may name threads, clocks and randomness. All others get these as arguments.
const DRIVERS: &[&str] = &[
    "src/admin/access.rs",
    "src/admin/reverse_proxy.rs",
    "src/app/lifecycle.rs",
    "src/auth/clock.rs",
    "src/cli/files.rs",
    "src/cli/messages/pace.rs",
    "src/cli/runtime.rs",
    "src/client/clock.rs",
    "src/client/consumer/discovery.rs",
    "src/client/consumer/set.rs",
    "src/client/consumer/task.rs",
    "src/client/dial.rs",
    "src/client/pool.rs",
    "src/client/reader.rs",
    "src/gateway/accept.rs",
    "src/gateway/connection/lookup.rs",
    "src/gateway/connection/mod.rs",
    "src/gateway/discovery/mod.rs",
    "src/gateway/forward.rs",
    "src/gateway/notices.rs",
    "src/gateway/pools.rs",
    "src/http/client.rs",
    "src/http/idle.rs",
    "src/http/server.rs",
    "src/journal/driver.rs",
    "src/metadata/clock.rs",
    "src/net/reload.rs",
    "src/perf/consume.rs",
    "src/perf/null_broker/connection.rs",
    "src/perf/produce.rs",
    "src/perf/run.rs",
    "src/telemetry/log_writer.rs",
    "src/telemetry/metrics.rs",
    "src/testing/scripted_broker.rs",
    "src/testing/sim_journal.rs",
];
const DRIVERS_ONLY: &[&str] = &["Instant", "SystemTime", "RandomState"];
/// Randomness without a seed that a test can give.
const UNSEEDED: &[&str] = &["rand::rng", "rand::random", "rand::random_range"];

const FILE_LINES_MAX: usize = 900;

/// Folders and files of the repository that documents name by their path.
const PATH_ROOTS: &[&str] = &[
    "src/", "tests/", "docs/", "proto/", "benches/", "fuzz/", "deploy/", "helm/", ".ci/",
    ".github/",
];
const ROOT_FILE_EXTENSIONS: &[&str] = &[".toml", ".md", ".rs", ".lock"];

#[test]
fn modules_use_only_lower_layers() {
    check(sources().flat_map(|(path, text)| layer_violations(&path, &text)));
}

#[test]
fn pure_modules_name_nothing_impure() {
    check(sources().flat_map(|(path, text)| purity_violations(&path, &text)));
}

#[test]
fn only_some_modules_open_files() {
    check(sources().flat_map(|(path, text)| file_access_violations(&path, &text)));
}

#[test]
fn only_drivers_name_threads_clocks_and_randomness() {
    check(sources().flat_map(|(path, text)| driver_violations(&path, &text)));
    for driver in DRIVERS {
        assert!(
            root().join(driver).exists(),
            "{driver} is listed as a driver but does not exist"
        );
    }
}

#[test]
fn files_are_short() {
    let others = ["tests", "benches", "fuzz"]
        .into_iter()
        .flat_map(|folder| files_below(folder, ".rs"));
    let all = files_below("src", ".rs")
        .into_iter()
        .chain(others)
        .chain([PathBuf::from("build.rs")]);
    check(
        all.filter(|path| root().join(path).exists())
            .flat_map(|path| {
                let text = read(&path);
                length_violations(&path, &text)
            }),
    );
}

#[test]
fn documents_name_paths_that_exist() {
    let documents = files_below("docs", ".md")
        .into_iter()
        .chain(["README.md", "CHANGELOG.md"].map(PathBuf::from));
    check(
        documents
            .filter(|path| root().join(path).exists())
            .flat_map(|path| {
                let text = read(&path);
                document_violations(&path, &text, |named| root().join(named).exists())
            }),
    );
}

fn check(violations: impl Iterator<Item = String>) {
    let violations: Vec<String> = violations.collect();
    assert!(
        violations.is_empty(),
        "{} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

/// Edges that point to a module of the same or a higher layer, or to none of the table.
fn layer_violations(path: &Path, source: &str) -> Vec<String> {
    let from = top_module(path);
    if from == "lib" {
        return Vec::new();
    }
    let mut violations = Vec::new();
    if from != TESTING && layer(&from).is_none() {
        violations.push(format!(
            "{}: module {from} is not in the layer table",
            path.display()
        ));
    }
    let mut seen = BTreeSet::new();
    for name in names_in(path, source) {
        // `crate` alone is a visibility: the tokens of a macro call are not told apart.
        let Some(inner) = name.text.strip_prefix("crate::") else {
            continue;
        };
        let to = inner.split("::").next().unwrap_or_default().to_owned();
        if to == from || !seen.insert((to.clone(), name.in_test)) {
            continue;
        }
        let allowed = match (to.as_str(), layer(&to), layer(&from)) {
            (TESTING, _, _) => name.in_test,
            (_, Some(to), None) => from == TESTING && to <= TESTING_MAY_USE,
            (_, Some(to), Some(from)) => to < from,
            (_, None, _) => false,
        };
        if !allowed {
            violations.push(format!("{}: {from} must not use {to}", path.display()));
        }
    }
    violations
}

fn purity_violations(path: &Path, source: &str) -> Vec<String> {
    let pure = PURE_MODULES.contains(&top_module(path).as_str())
        || path.ends_with("state.rs")
        || PURE_FILES.iter().any(|file| path == Path::new(file));
    if !pure {
        return Vec::new();
    }
    forbidden(
        path,
        source,
        |name| IMPURE.iter().any(|impure| is_within(name, impure)),
        "in a pure module",
    )
}

fn file_access_violations(path: &Path, source: &str) -> Vec<String> {
    if MAY_USE_FILES.contains(&top_module(path).as_str()) {
        return Vec::new();
    }
    let opens = |name: &str| is_within(name, "std::fs") || is_within(name, "tokio::fs");
    forbidden(
        path,
        source,
        opens,
        "outside the modules that may open files",
    )
}

fn driver_violations(path: &Path, source: &str) -> Vec<String> {
    if DRIVERS.iter().any(|driver| path == Path::new(driver)) {
        return Vec::new();
    }
    let drives = |name: &str| {
        is_within(name, "std::thread")
            || UNSEEDED.contains(&name)
            || name
                .split("::")
                .any(|segment| DRIVERS_ONLY.contains(&segment))
    };
    forbidden(
        path,
        source,
        drives,
        "in a file that is not listed as a driver",
    )
}

/// One violation for each name outside tests that `is_forbidden`.
fn forbidden(
    path: &Path,
    source: &str,
    is_forbidden: impl Fn(&str) -> bool,
    place: &str,
) -> Vec<String> {
    let names: BTreeSet<String> = names_in(path, source)
        .into_iter()
        .filter(|name| !name.in_test && is_forbidden(&name.text))
        .map(|name| name.text)
        .collect();
    names
        .into_iter()
        .map(|name| format!("{}: names {name} {place}", path.display()))
        .collect()
}

fn length_violations(path: &Path, source: &str) -> Vec<String> {
    let lines = source.lines().count();
    let long = lines > FILE_LINES_MAX;
    long.then(|| {
        format!(
            "{}: {lines} lines, at most {FILE_LINES_MAX}",
            path.display()
        )
    })
    .into_iter()
    .collect()
}

/// Paths in backticks and link targets that do not exist. Code blocks are not looked at.
fn document_violations(path: &Path, text: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut violations = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
            continue;
        }
        if in_block {
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let quoted = line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter_map(repository_path)
            .map(PathBuf::from);
        let linked = line
            .split("](")
            .skip(1)
            .filter_map(link_target)
            .map(|target| folder.join(target));
        for named in quoted.chain(linked) {
            if !exists(&named) {
                violations.push(format!(
                    "{}:{}: {} does not exist",
                    path.display(),
                    index + 1,
                    named.display()
                ));
            }
        }
    }
    violations
}

/// The path that a piece of code in a document names, if it looks like one of this repository.
fn repository_path(code: &str) -> Option<&str> {
    let plain = !code
        .contains(|character: char| character.is_whitespace() || "*<>{}$=".contains(character));
    let path = code.split([':', '#']).next().unwrap_or_default();
    let at_root = !path.contains('/')
        && ROOT_FILE_EXTENSIONS
            .iter()
            .any(|extension| path.len() > extension.len() && path.ends_with(extension));
    let rooted = PATH_ROOTS.iter().any(|root| path.starts_with(root));
    // A module path such as `src::x` is no file path, and a bare `mod.rs` names files of many folders.
    (plain && (rooted || (at_root && path != "mod.rs" && path != "state.rs"))).then_some(path)
}

fn link_target(after: &str) -> Option<&str> {
    let target = after.split(')').next()?.split('#').next()?;
    let local = !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
    local.then_some(target)
}

fn is_within(name: &str, outer: &str) -> bool {
    name.strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn layer(module: &str) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, layer)| *layer)
}

/// A path that some code names, `self` and `super` resolved to `crate::..`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    text: String,
    in_test: bool,
}

fn names_in(path: &Path, source: &str) -> Vec<Name> {
    let file =
        syn::parse_file(source).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let in_test = path
        .file_stem()
        .is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"))
        || has_cfg_test(&file.attrs);
    let mut collector = Collector {
        module: module_path(path),
        in_test,
        names: Vec::new(),
    };
    collector.visit_file(&file);
    collector.names
}

struct Collector {
    module: Vec<String>,
    in_test: bool,
    names: Vec<Name>,
}

impl Collector {
    fn add(&mut self, segments: &[String]) {
        let Some(first) = segments.first() else {
            return;
        };
        let resolved: Vec<String> = match first.as_str() {
            "self" | "super" => {
                let mut module = self.module.clone();
                let mut rest = segments;
                while let [first, others @ ..] = rest {
                    match first.as_str() {
                        "super" => drop(module.pop()),
                        "self" => {}
                        _ => break,
                    }
                    rest = others;
                }
                ["crate".to_owned()]
                    .into_iter()
                    .chain(module)
                    .chain(rest.iter().cloned())
                    .collect()
            }
            // The binary sees the library under its name.
            "pulsegate" => ["crate".to_owned()]
                .into_iter()
                .chain(segments.iter().skip(1).cloned())
                .collect(),
            _ => segments.to_vec(),
        };
        self.names.push(Name {
            text: resolved.join("::"),
            in_test: self.in_test,
        });
    }

    fn add_use(&mut self, tree: &syn::UseTree, prefix: &[String]) {
        let with = |name: String| prefix.iter().cloned().chain([name]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.add_use(&path.tree, &with(path.ident.to_string())),
            syn::UseTree::Name(name) if name.ident == "self" => self.add(prefix),
            syn::UseTree::Name(name) => self.add(&with(name.ident.to_string())),
            syn::UseTree::Rename(rename) => self.add(&with(rename.ident.to_string())),
            syn::UseTree::Glob(_) => self.add(&with("*".to_owned())),
            syn::UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|item| self.add_use(item, prefix)),
        }
    }

    /// Paths in the tokens of a macro call, which are not parsed: runs of `name :: name`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add(&std::mem::take(&mut segments));
                    }
                    segments.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.add(&std::mem::take(&mut segments));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(&segments);
    }

    fn within(&mut self, attrs: &[syn::Attribute], visit: impl FnOnce(&mut Self)) {
        let before = self.in_test;
        self.in_test |= has_cfg_test(attrs);
        visit(self);
        self.in_test = before;
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(&item.attrs, |inner| {
            inner.module.push(item.ident.to_string());
            visit::visit_item_mod(inner, item);
            inner.module.pop();
        });
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.within(&item.attrs, |inner| inner.add_use(&item.tree, &[]));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(&item.attrs, |inner| visit::visit_item_fn(inner, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.within(&item.attrs, |inner| visit::visit_item_impl(inner, item));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        self.add(&segments);
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(crate)` names no module that is used.
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.add_tokens(mac.tokens.clone());
        visit::visit_macro(self, mac);
    }
}

/// Whether an item is compiled for tests only.
fn has_cfg_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        if attr.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attr.meta else {
            return false;
        };
        let mut idents = list
            .tokens
            .clone()
            .into_iter()
            .filter_map(|token| match token {
                TokenTree::Ident(ident) => Some(ident.to_string()),
                _ => None,
            });
        attr.path().is_ident("cfg") && idents.next().is_some_and(|first| first == "test")
    })
}

/// `src/a/b.rs` is `a::b`, `src/a/mod.rs` is `a`, `src/main.rs` and `src/lib.rs` are the root.
fn module_path(path: &Path) -> Vec<String> {
    let below = path.strip_prefix("src").unwrap_or(path).with_extension("");
    let mut parts: Vec<String> = below
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let index = parts.last().is_some_and(|last| last == "mod");
    let root = matches!(parts.as_slice(), [only] if only == "main" || only == "lib");
    if index || root {
        parts.pop();
    }
    parts
}

fn top_module(path: &Path) -> String {
    let root = || {
        path.file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    module_path(path).into_iter().next().unwrap_or_else(root)
}

fn sources() -> impl Iterator<Item = (PathBuf, String)> {
    files_below("src", ".rs").into_iter().map(|path| {
        let text = read(&path);
        (path, text)
    })
}

/// Files below a folder of the repository, relative to its root, sorted.
fn files_below(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(root().join(&folder)) else {
            continue;
        };
        for entry in entries {
            let entry = entry.expect("readable folder");
            let path = folder.join(entry.file_name());
            if entry.file_type().expect("file type").is_dir() {
                if entry.file_name() != "target" {
                    folders.push(path);
                }
            } else if path.to_string_lossy().ends_with(extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(built, PathBuf::from)
}

mod rules {
    //! Each rule on a text that violates it.

    use super::*;

    fn layers(path: &str, source: &str) -> Vec<String> {
        layer_violations(Path::new(path), source)
    }

    #[test]
    fn an_edge_upwards_is_found_however_it_is_written() {
        let cases = [
            "use crate::gateway::Gateway;",
            "use crate::{naming::TopicName, gateway};",
            "use super::super::gateway::Gateway;",
            "use super::{frame, super::gateway};",
            "pub use crate::gateway as g;",
            "fn f() { crate::gateway::run(); }",
            "fn f(x: &crate::gateway::Gateway) {}",
            "fn f() { info!(\"{}\", crate::gateway::NAME); }",
            "macro_rules! m { () => { $crate::gateway::run() } }",
            "impl crate::gateway::Handler for X {}",
            "mod inner { use super::super::super::gateway::Gateway; }",
            "#[cfg(test)] mod tests { use crate::gateway::Gateway; }",
        ];
        for source in cases {
            let found = layers("src/net/reader.rs", source);
            assert_eq!(
                found,
                ["src/net/reader.rs: net must not use gateway"],
                "{source}"
            );
        }
    }

    #[test]
    fn edges_downwards_and_within_a_module_are_allowed() {
        let source = "use crate::{naming::TopicName, protocol}; use super::listener; use crate::net::x; use std::fmt;
            pub(crate) struct A; pub(super) fn g() {} struct B { pub(in crate::net) c: u8 }
            m! { pub(crate) fn h() {} }
            use self::y; mod inner { use super::z; use super::super::listener; }";
        assert_eq!(layers("src/net/reader.rs", source), Vec::<String>::new());
        assert_eq!(
            layers(
                "src/main.rs",
                "use pulsegate::cli; use pulsegate::{app, telemetry};"
            ),
            Vec::<String>::new()
        );
        assert_eq!(
            layers("src/lib.rs", "pub mod gateway;"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn modules_of_one_layer_do_not_use_each_other() {
        assert_eq!(
            layers("src/protocol/mod.rs", "use crate::config::X;").len(),
            1
        );
        assert_eq!(
            layers("src/gateway/mod.rs", "use crate::broker::X;").len(),
            1
        );
    }

    #[test]
    fn unknown_modules_and_globs_of_the_crate_are_found() {
        assert_eq!(
            layers("src/util/mod.rs", ""),
            ["src/util/mod.rs: module util is not in the layer table"]
        );
        assert_eq!(
            layers("src/app/mod.rs", "use crate::util::X;"),
            ["src/app/mod.rs: app must not use util"]
        );
        assert_eq!(layers("src/app/mod.rs", "use crate::*;").len(), 1);
    }

    #[test]
    fn only_tests_use_the_testing_module() {
        assert_eq!(layers("src/net/mod.rs", "use crate::testing::X;").len(), 1);
        assert_eq!(
            layers(
                "src/net/mod.rs",
                "#[cfg(test)] mod tests { use crate::testing::X; }"
            ),
            Vec::<String>::new()
        );
        for path in ["src/net/tests.rs", "src/net/reader_tests.rs"] {
            assert_eq!(layers(path, "use crate::testing::X;"), Vec::<String>::new());
        }
        assert_eq!(
            layers("src/testing/mod.rs", "use crate::client::X;"),
            Vec::<String>::new()
        );
        assert_eq!(
            layers("src/testing/mod.rs", "use crate::gateway::X;").len(),
            1
        );
    }

    #[test]
    fn impure_names_in_pure_modules_are_found() {
        let impure = [
            "use tokio::sync::watch;",
            "use std::{fs, fmt};",
            "use std::net::{IpAddr, TcpStream};",
            "fn f() { std::thread::yield_now(); }",
            "fn f() { log!(std::env::args()); }",
        ];
        for source in impure {
            for path in [
                "src/naming/topic.rs",
                "src/protocol/frame.rs",
                "src/gateway/connection/state.rs",
                "src/journal/commit.rs",
            ] {
                assert_eq!(
                    purity_violations(Path::new(path), source).len(),
                    1,
                    "{path}: {source}"
                );
            }
            assert_eq!(
                purity_violations(Path::new("src/net/reader.rs"), source),
                Vec::<String>::new()
            );
        }
        let pure = "use std::net::IpAddr; use std::time::Duration; #[cfg(test)] mod tests { use tokio::test; }";
        assert_eq!(
            purity_violations(Path::new("src/naming/topic.rs"), pure),
            Vec::<String>::new()
        );
    }

    #[test]
    fn opening_files_elsewhere_is_found() {
        for source in [
            "use std::fs::File;",
            "fn f() { std::fs::read(\"x\"); }",
            "use std::{fmt, fs::{self, File}};",
        ] {
            assert!(
                !file_access_violations(Path::new("src/net/mod.rs"), source).is_empty(),
                "{source}"
            );
            assert_eq!(
                file_access_violations(Path::new("src/config/mod.rs"), source),
                Vec::<String>::new()
            );
        }
        let in_test = "#[test] fn f() { std::fs::read(\"x\"); }";
        assert_eq!(
            file_access_violations(Path::new("src/net/mod.rs"), in_test),
            Vec::<String>::new()
        );
    }

    #[test]
    fn clocks_threads_and_randomness_outside_drivers_are_found() {
        for source in [
            "use std::time::Instant;",
            "use tokio::time::{Instant, sleep};",
            "fn f() { std::time::SystemTime::now(); }",
            "use std::hash::RandomState;",
            "use std::thread;",
        ] {
            assert_eq!(
                driver_violations(Path::new("src/gateway/mod.rs"), source).len(),
                1,
                "{source}"
            );
            assert_eq!(
                driver_violations(Path::new(DRIVERS[0]), source),
                Vec::<String>::new()
            );
        }
        let allowed = "use std::time::Duration; #[cfg(test)] mod tests { use std::time::Instant; }";
        assert_eq!(
            driver_violations(Path::new("src/gateway/mod.rs"), allowed),
            Vec::<String>::new()
        );
    }

    #[test]
    fn long_files_are_found() {
        let path = Path::new("src/net/mod.rs");
        assert_eq!(
            length_violations(path, &"x\n".repeat(FILE_LINES_MAX)),
            Vec::<String>::new()
        );
        assert_eq!(
            length_violations(path, &"x\n".repeat(FILE_LINES_MAX + 1)).len(),
            1
        );
    }

    #[test]
    fn paths_in_documents_that_do_not_exist_are_found() {
        let exists =
            |path: &Path| path == Path::new("src/net/mod.rs") || path == Path::new("docs/a.md");
        let document = |text: &str| document_violations(Path::new("docs/x.md"), text, exists);
        for good in [
            "see `src/net/mod.rs` and `src/net/mod.rs:12`, `cargo test src/none`, `net::x`, `a/b`, `src/*/mod.rs`",
            "[a](a.md#part) [web](https://example.org/x.md) [here](#part)",
            "```\n`src/none.rs`\n```",
            "`persistent://t/n/x` `mod.rs` `a.md b`",
        ] {
            assert_eq!(document(good), Vec::<String>::new(), "{good}");
        }
        for bad in [
            "`src/none.rs`",
            "a `b` `tests/none/`",
            "`none.toml`",
            "[x](none.md)",
            "[x](../src/none.rs)",
        ] {
            assert_eq!(document(bad).len(), 1, "{bad}");
        }
        assert_eq!(
            document("one\n`src/none.rs`"),
            ["docs/x.md:2: src/none.rs does not exist"]
        );
    }
}

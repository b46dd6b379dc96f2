//! ai.onnx.ml: tree ensembles. All trees are one table of nodes; every row of x goes down all trees at once, a level a step:
//! look up the node's feature, compare it, look up the child. A leaf is its own child, so that shallow trees wait.

use std::collections::BTreeMap;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, GatherElements, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim, Tensor};

use super::ml::{PostTransform, label_values, labels, rows_of};
use crate::import::{Applies, Fault, Import, NodeCx, StructureImport, Value};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "ai.onnx.ml", name: "TreeEnsemble", since: 5, tier: 3, function: tree_ensemble },
    Import { domain: "ai.onnx.ml", name: "TreeEnsembleRegressor", since: 1, tier: 3, function: regressor },
];

/// Rows of operators whose labels may be strings.
pub(super) const STRUCTURES: &[StructureImport] = &[StructureImport {
    domain: "ai.onnx.ml",
    name: "TreeEnsembleClassifier",
    since: 1,
    tier: 3,
    applies: Applies::Always,
    function: classifier,
}];

/// What a node asks of its feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    Is(CompareFn),
    IsNot,
    /// Whether it is one of the node's members.
    IsMember,
}

/// One node of a tree.
#[derive(Clone, Debug)]
struct TreeNode {
    feature: i64,
    /// What it asks; a leaf asks nothing.
    question: Option<Question>,
    threshold: f64,
    members: Vec<f64>,
    /// Where to go, as places in the table of nodes.
    yes: usize,
    no: usize,
    /// Whether a feature that is NaN goes where `yes` goes.
    tracks_missing: bool,
    /// Targets and their weights, of a leaf.
    weights: Vec<(usize, f64)>,
}

impl TreeNode {
    fn leaf(place: usize) -> TreeNode {
        let members = Vec::new();
        TreeNode {
            feature: 0,
            question: None,
            threshold: 0.0,
            members,
            yes: place,
            no: place,
            tracks_missing: false,
            weights: Vec::new(),
        }
    }
}

/// How the trees of an ensemble come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// An ensemble as it is imported.
#[derive(Debug)]
struct Forest {
    nodes: Vec<TreeNode>,
    roots: Vec<usize>,
    targets: usize,
}

/// The number of a mode in TreeEnsemble, and its name in the older operators.
const QUESTIONS: [(&str, Question); 7] = [
    ("BRANCH_LEQ", Question::Is(CompareFn::Le)),
    ("BRANCH_LT", Question::Is(CompareFn::Lt)),
    ("BRANCH_GTE", Question::Is(CompareFn::Ge)),
    ("BRANCH_GT", Question::Is(CompareFn::Gt)),
    ("BRANCH_EQ", Question::Is(CompareFn::Eq)),
    ("BRANCH_NEQ", Question::IsNot),
    ("BRANCH_MEMBER", Question::IsMember),
];

fn invalid<T>(text: String) -> Result<T, Fault> {
    Err(Fault::Invalid(text))
}

/// A list attribute of numbers, or the tensor attribute that newer versions have instead.
fn numbers(cx: &NodeCx<'_, '_>, name: &str) -> Result<Option<Vec<f64>>, Fault> {
    let as_tensor = format!("{name}_as_tensor");
    if let Some(proto) = cx.attributes().tensor(&as_tensor)? {
        return Ok(Some(cx.read_tensor(proto)?.to_f64_vec()));
    }
    cx.attributes().floats(name)
}

/// A list attribute that has one entry for each of something.
fn ints_of(cx: &NodeCx<'_, '_>, name: &str, count: usize) -> Result<Vec<i64>, Fault> {
    let ints = cx.ints(name)?.unwrap_or_default();
    if ints.len() != count {
        return invalid(format!("attribute '{name}' has {} entries; {count} were expected", ints.len()));
    }
    Ok(ints)
}

/// A flag for each node; absent means no.
fn flags_of(cx: &NodeCx<'_, '_>, name: &str, count: usize) -> Result<Vec<bool>, Fault> {
    match cx.ints(name)?.filter(|flags| !flags.is_empty()) {
        None => Ok(vec![false; count]),
        Some(flags) if flags.len() == count => Ok(flags.into_iter().map(|flag| flag != 0).collect()),
        Some(flags) => invalid(format!("attribute '{name}' has {} entries; {count} were expected", flags.len())),
    }
}

impl Forest {
    /// The trees of TreeEnsembleRegressor and TreeEnsembleClassifier; `stem` is what their leaves' attributes begin with.
    fn of_lists(cx: &NodeCx<'_, '_>, stem: &str, targets: usize) -> Result<Forest, Fault> {
        let trees = cx.ints("nodes_treeids")?.unwrap_or_default();
        let count = trees.len();
        let ids = ints_of(cx, "nodes_nodeids", count)?;
        let places: BTreeMap<(i64, i64), usize> =
            trees.iter().copied().zip(ids).enumerate().map(|(place, key)| (key, place)).collect();
        if places.len() != count {
            return invalid("two nodes of one tree have the same number".to_string());
        }
        let features = ints_of(cx, "nodes_featureids", count)?;
        let (yes, no) = (ints_of(cx, "nodes_truenodeids", count)?, ints_of(cx, "nodes_falsenodeids", count)?);
        let modes = cx.attributes().strings("nodes_modes")?.unwrap_or_default();
        let thresholds = numbers(cx, "nodes_values")?.unwrap_or_default();
        if modes.len() != count || thresholds.len() != count {
            return invalid(format!("{} modes and {} values for {count} nodes", modes.len(), thresholds.len()));
        }
        let tracks = flags_of(cx, "nodes_missing_value_tracks_true", count)?;
        numbers(cx, "nodes_hitrates")?;
        let mut nodes: Vec<TreeNode> = (0..count).map(TreeNode::leaf).collect();
        for (place, node) in nodes.iter_mut().enumerate() {
            if modes[place] == "LEAF" {
                continue;
            }
            let question = QUESTIONS.iter().find(|(name, _)| *name == modes[place] && *name != "BRANCH_MEMBER");
            let Some((_, question)) = question else {
                return invalid(format!("attribute 'nodes_modes' has '{}'", modes[place]));
            };
            let child = |id: i64| match places.get(&(trees[place], id)) {
                Some(&child) => Ok(child),
                None => invalid(format!("tree {} has no node {id}", trees[place])),
            };
            node.question = Some(*question);
            (node.yes, node.no) = (child(yes[place])?, child(no[place])?);
            (node.feature, node.threshold) = (features[place], thresholds[place]);
            node.tracks_missing = tracks[place];
        }
        let mut forest = Forest { roots: roots_of(&nodes, &trees), nodes, targets };
        forest.add_weights(cx, stem, &places)?;
        Ok(forest)
    }

    /// Weights of leaves, which name them by tree and number.
    fn add_weights(
        &mut self,
        cx: &NodeCx<'_, '_>,
        stem: &str,
        places: &BTreeMap<(i64, i64), usize>,
    ) -> Result<(), Fault> {
        let weights = numbers(cx, &format!("{stem}_weights"))?.unwrap_or_default();
        let trees = ints_of(cx, &format!("{stem}_treeids"), weights.len())?;
        let nodes = ints_of(cx, &format!("{stem}_nodeids"), weights.len())?;
        let targets = ints_of(cx, &format!("{stem}_ids"), weights.len())?;
        for (at, &weight) in weights.iter().enumerate() {
            let Some(&place) = places.get(&(trees[at], nodes[at])) else {
                return invalid(format!("tree {} has no node {} for a weight", trees[at], nodes[at]));
            };
            let target = self.target(targets[at])?;
            self.nodes[place].weights.push((target, weight));
        }
        Ok(())
    }

    fn target(&self, target: i64) -> Result<usize, Fault> {
        match usize::try_from(target).ok().filter(|&target| target < self.targets) {
            Some(target) => Ok(target),
            None => invalid(format!("target {target} is outside of 0..{}", self.targets)),
        }
    }

    /// The trees of TreeEnsemble, whose leaves come after its inner nodes.
    fn of_tensors(cx: &NodeCx<'_, '_>, targets: usize) -> Result<Forest, Fault> {
        let tensor = |name: &str| -> Result<Option<Vec<f64>>, Fault> {
            let proto = cx.attributes().tensor(name)?;
            proto.map(|proto| Ok(cx.read_tensor(proto)?.to_f64_vec())).transpose()
        };
        let features = cx.ints("nodes_featureids")?.unwrap_or_default();
        let count = features.len();
        let (modes, splits) = (tensor("nodes_modes")?.unwrap_or_default(), tensor("nodes_splits")?.unwrap_or_default());
        if modes.len() != count || splits.len() != count {
            return invalid(format!("{} modes and {} splits for {count} nodes", modes.len(), splits.len()));
        }
        tensor("nodes_hitrates")?;
        let leaf_targets = cx.ints("leaf_targetids")?.unwrap_or_default();
        let leaf_weights = tensor("leaf_weights")?.unwrap_or_default();
        if leaf_weights.len() != leaf_targets.len() {
            return invalid(format!("{} weights for {} leaves", leaf_weights.len(), leaf_targets.len()));
        }
        let tracks = flags_of(cx, "nodes_missing_value_tracks_true", count)?;
        let sides = [("nodes_truenodeids", "nodes_trueleafs"), ("nodes_falsenodeids", "nodes_falseleafs")];
        let [yes, no] = sides.map(|(ids, leaves)| -> Result<Vec<usize>, Fault> {
            let (ids, leaves) = (ints_of(cx, ids, count)?, flags_of(cx, leaves, count)?);
            let children = ids.into_iter().zip(leaves);
            children.map(|(id, is_leaf)| child_place(id, is_leaf, count, leaf_weights.len())).collect()
        });
        let (yes, no) = (yes?, no?);
        let mut members = member_sets(&tensor("membership_values")?.unwrap_or_default()).into_iter();
        let mut nodes: Vec<TreeNode> = (0..count + leaf_weights.len()).map(TreeNode::leaf).collect();
        let mut forest = Forest { nodes: Vec::new(), roots: Vec::new(), targets };
        for (place, node) in nodes.iter_mut().enumerate().take(count) {
            let Some((_, question)) = QUESTIONS.get(modes[place] as usize) else {
                return invalid(format!("mode {} is outside of 0..{}", modes[place], QUESTIONS.len()));
            };
            if *question == Question::IsMember {
                node.members = members.next().unwrap_or_default();
            }
            node.question = Some(*question);
            (node.feature, node.threshold) = (features[place], splits[place]);
            (node.yes, node.no) = (yes[place], no[place]);
            node.tracks_missing = tracks[place];
        }
        for (leaf, (&target, &weight)) in leaf_targets.iter().zip(&leaf_weights).enumerate() {
            nodes[count + leaf].weights.push((forest.target(target)?, weight));
        }
        for root in cx.ints("tree_roots")?.unwrap_or_default() {
            forest.roots.push(root_place(root, count, leaf_weights.len(), &yes, &no)?);
        }
        forest.nodes = nodes;
        Ok(forest)
    }

    /// Steps from a root to the deepest leaf. An ensemble in which a node comes after itself has none.
    fn depth(&self) -> Result<usize, Fault> {
        let mut depth = 0;
        // From every node, not from roots alone: a node of a circle is no root.
        let mut level: Vec<usize> = (0..self.nodes.len()).collect();
        while level.iter().any(|&place| self.nodes[place].question.is_some()) {
            let inner = level.iter().filter(|&&place| self.nodes[place].question.is_some());
            let mut next: Vec<usize> = inner.flat_map(|&place| [self.nodes[place].yes, self.nodes[place].no]).collect();
            next.sort_unstable();
            next.dedup();
            level = next;
            depth += 1;
            if depth > self.nodes.len() {
                return invalid("a node of a tree comes after itself".to_string());
            }
        }
        Ok(depth)
    }

    /// The weights that each row of x ends at: [rows, trees, targets].
    fn descend(&self, cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId, Fault> {
        let depth = self.depth()?;
        if !cx.may_unroll(depth * NODES_PER_LEVEL) {
            return Err(Fault::Unsupported(format!("trees of {depth} levels are not covered")));
        }
        let rows = cx.dims(x)[0].clone();
        let roots: Vec<i64> = self.roots.iter().map(|&root| root as i64).collect();
        let start = cx.tensor(table(vec![1, roots.len()], roots)?);
        let mut at = cx.broadcast(start, vec![rows, Dim::from(self.roots.len())])?;
        let column = |of: &dyn Fn(&TreeNode) -> i64| table(vec![self.nodes.len()], self.nodes.iter().map(of).collect());
        let features = cx.tensor(column(&|node| node.feature)?);
        let (yes, no) = (cx.tensor(column(&|node| node.yes as i64)?), cx.tensor(column(&|node| node.no as i64)?));
        for _ in 0..depth {
            let feature = cx.gather(features, at, 0)?;
            let found = cx.add(GatherElements { axis: 1 }, &[x, feature])?;
            let answer = self.answer(cx, at, found)?;
            let (if_yes, if_no) = (cx.gather(yes, at, 0)?, cx.gather(no, at, 0)?);
            at = cx.select(answer, if_yes, if_no)?;
        }
        let weights = self.weight_table(cx, cx.dtype(x))?;
        cx.gather(weights, at, 0)
    }

    /// Whether the feature that was found answers a node's question with yes.
    fn answer(&self, cx: &mut NodeCx<'_, '_>, at: ValueId, found: ValueId) -> Result<ValueId, Fault> {
        let mut questions: Vec<Question> = self.nodes.iter().filter_map(|node| node.question).collect();
        questions.sort_unstable();
        questions.dedup();
        let thresholds: Vec<f64> = self.nodes.iter().map(|node| node.threshold).collect();
        let thresholds = cx.float_tensor(cx.dtype(found), vec![thresholds.len()], &thresholds)?;
        let threshold = cx.gather(thresholds, at, 0)?;
        let mut answer = None;
        for question in questions {
            let own = self.ask(cx, question, at, found, threshold)?;
            answer = Some(match answer {
                None => own,
                Some(other) => {
                    let is_own = self.flags(cx, at, |node| node.question == Some(question))?;
                    cx.select(is_own, own, other)?
                }
            });
        }
        let Some(answer) = answer else { return self.flags(cx, at, |_| false) };
        if !self.nodes.iter().any(|node| node.tracks_missing) {
            return Ok(answer);
        }
        let (is_missing, tracks) = (cx.unary(UnaryFn::IsNan, found)?, self.flags(cx, at, |node| node.tracks_missing)?);
        let goes_along = cx.binary(BinaryFn::And, is_missing, tracks)?;
        cx.binary(BinaryFn::Or, answer, goes_along)
    }

    fn ask(
        &self,
        cx: &mut NodeCx<'_, '_>,
        question: Question,
        at: ValueId,
        found: ValueId,
        threshold: ValueId,
    ) -> Result<ValueId, Fault> {
        match question {
            Question::Is(func) => cx.compare(func, found, threshold),
            Question::IsNot => {
                let is_equal = cx.compare(CompareFn::Eq, found, threshold)?;
                cx.unary(UnaryFn::Not, is_equal)
            }
            Question::IsMember => {
                let most = self.nodes.iter().map(|node| node.members.len()).max().unwrap_or(0).max(1);
                // NaN is equal to nothing, so it fills the sets up.
                let filled = |node: &TreeNode| {
                    let filling = std::iter::repeat(f64::NAN);
                    node.members.iter().copied().chain(filling).take(most).collect::<Vec<f64>>()
                };
                let members: Vec<f64> = self.nodes.iter().flat_map(filled).collect();
                let members = cx.float_tensor(cx.dtype(found), vec![self.nodes.len(), most], &members)?;
                let members = cx.gather(members, at, 0)?;
                let found = cx.unsqueeze(found, &[2])?;
                let is_equal = cx.compare(CompareFn::Eq, found, members)?;
                cx.reduce(ReduceFn::Any, is_equal, vec![2], false)
            }
        }
    }

    /// A property of the nodes that rows are at.
    fn flags(&self, cx: &mut NodeCx<'_, '_>, at: ValueId, has: impl Fn(&TreeNode) -> bool) -> Result<ValueId, Fault> {
        let flags: Vec<bool> = self.nodes.iter().map(has).collect();
        let flags = Tensor::from_bools(vec![flags.len()], &flags).map_err(|error| Fault::Invalid(error.to_string()))?;
        let flags = cx.tensor(flags);
        cx.gather(flags, at, 0)
    }

    /// Weights by node and target.
    fn weight_table(&self, cx: &mut NodeCx<'_, '_>, dtype: DType) -> Result<ValueId, Fault> {
        let mut weights = vec![0.0; self.nodes.len() * self.targets];
        for (place, node) in self.nodes.iter().enumerate() {
            for &(target, weight) in &node.weights {
                weights[place * self.targets + target] += weight;
            }
        }
        cx.float_tensor(dtype, vec![self.nodes.len(), self.targets], &weights)
    }

    /// Scores of each row and target.
    fn scores(&self, cx: &mut NodeCx<'_, '_>, x: ValueId, aggregate: Aggregate) -> Result<ValueId, Fault> {
        let weights = self.descend(cx, x)?;
        let func = match aggregate {
            Aggregate::Sum => ReduceFn::Sum,
            Aggregate::Average => ReduceFn::Mean,
            Aggregate::Min => ReduceFn::Min,
            Aggregate::Max => ReduceFn::Max,
        };
        cx.reduce(func, weights, vec![1], false)
    }
}

/// Nodes that a level of a tree becomes.
const NODES_PER_LEVEL: usize = 8;

fn table(shape: Vec<usize>, elements: Vec<i64>) -> Result<Tensor, Fault> {
    Tensor::from_vec(shape, elements).map_err(|error| Fault::Invalid(error.to_string()))
}

/// The first node of every tree that is no other node's child.
fn roots_of(nodes: &[TreeNode], trees: &[i64]) -> Vec<usize> {
    let mut is_child = vec![false; nodes.len()];
    for node in nodes.iter().filter(|node| node.question.is_some()) {
        is_child[node.yes] = true;
        is_child[node.no] = true;
    }
    let mut roots = BTreeMap::new();
    for place in (0..nodes.len()).filter(|&place| !is_child[place]) {
        roots.entry(trees[place]).or_insert(place);
    }
    roots.into_values().collect()
}

/// The place of a child of TreeEnsemble: leaves lie behind the inner nodes.
fn child_place(id: i64, is_leaf: bool, inner: usize, leaves: usize) -> Result<usize, Fault> {
    let (first, count) = if is_leaf { (inner, leaves) } else { (0, inner) };
    match usize::try_from(id).ok().filter(|&id| id < count) {
        Some(id) => Ok(first + id),
        None => invalid(format!("a node names {id} of {count} {}", if is_leaf { "leaves" } else { "nodes" })),
    }
}

/// The place of a root. A tree of one leaf has an inner node whose two sides are that leaf.
fn root_place(root: i64, inner: usize, leaves: usize, yes: &[usize], no: &[usize]) -> Result<usize, Fault> {
    let place = child_place(root, false, inner, leaves)?;
    Ok(if yes[place] == no[place] && yes[place] >= inner { yes[place] } else { place })
}

/// Sets of members, each ended by NaN.
fn member_sets(values: &[f64]) -> Vec<Vec<f64>> {
    let mut sets: Vec<Vec<f64>> = values.split(|value| value.is_nan()).map(<[f64]>::to_vec).collect();
    // What follows the last NaN is no set.
    sets.pop();
    sets
}

/// x as rows of floats in which thresholds are compared.
fn float_rows(cx: &mut NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    let x = rows_of(cx, 0)?;
    if cx.dtype(x) == DType::F64 { Ok(x) } else { cx.cast(x, DType::F32) }
}

fn positive(cx: &NodeCx<'_, '_>, name: &str, default: i64) -> Result<usize, Fault> {
    let number = cx.int(name, default)?;
    match usize::try_from(number).ok().filter(|&number| number > 0) {
        Some(number) => Ok(number),
        None => invalid(format!("attribute '{name}' is {number}; 1 or more was expected")),
    }
}

fn tree_ensemble(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let forest = Forest::of_tensors(cx, positive(cx, "n_targets", 1)?)?;
    let aggregate = match cx.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        other => return invalid(format!("attribute 'aggregate_function' is {other}; 0 to 3 was expected")),
    };
    let transform = PostTransform::of_number(cx.int("post_transform", 0)?)?;
    let x = float_rows(cx)?;
    let scores = forest.scores(cx, x, aggregate)?;
    Ok(vec![transform.apply(cx, scores)?])
}

/// Base values as a row, or nothing.
fn base_values(cx: &mut NodeCx<'_, '_>) -> Result<Vec<f64>, Fault> {
    Ok(numbers(cx, "base_values")?.unwrap_or_default())
}

fn regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let forest = Forest::of_lists(cx, "target", positive(cx, "n_targets", 1)?)?;
    let aggregate = match cx.string("aggregate_function", "SUM")?.as_str() {
        "SUM" => Aggregate::Sum,
        "AVERAGE" => Aggregate::Average,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        other => return invalid(format!("attribute 'aggregate_function' is '{other}'")),
    };
    let transform = PostTransform::of_attribute(cx)?;
    let x = float_rows(cx)?;
    let mut scores = forest.scores(cx, x, aggregate)?;
    scores = add_base(cx, scores, forest.targets)?;
    let scores = transform.apply(cx, scores)?;
    Ok(vec![cx.cast(scores, DType::F32)?])
}

fn add_base(cx: &mut NodeCx<'_, '_>, scores: ValueId, targets: usize) -> Result<ValueId, Fault> {
    let base = base_values(cx)?;
    if base.is_empty() {
        return Ok(scores);
    }
    if base.len() != targets && base.len() != 1 {
        return invalid(format!("{} base values for {targets} targets", base.len()));
    }
    let base = cx.float_tensor(cx.dtype(scores), vec![1, base.len()], &base)?;
    cx.binary(BinaryFn::Add, scores, base)
}

/// Labels and scores. Two classes of which only one has weights are one score and its complement.
fn classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>, Fault> {
    let classes = labels(cx, "classlabels_int64s")?;
    let forest = Forest::of_lists(cx, "class", classes.len().max(1))?;
    let transform = PostTransform::of_attribute(cx)?;
    let x = float_rows(cx)?;
    let scores = forest.scores(cx, x, Aggregate::Sum)?;
    let mut used: Vec<usize> =
        forest.nodes.iter().flat_map(|node| node.weights.iter().map(|weight| weight.0)).collect();
    used.sort_unstable();
    used.dedup();
    if let ([only], 2) = (used.as_slice(), classes.len()) {
        let score = cx.slice_axis(scores, 1, Dim::from(*only), Dim::ONE)?;
        let base = base_values(cx)?.last().copied().unwrap_or(0.0);
        let score = cx.binary_scalar(BinaryFn::Add, score, base)?;
        let are_positive = forest.nodes.iter().flat_map(|node| &node.weights).all(|weight| weight.1 >= 0.0);
        let (label, both) = two_classes(cx, score, are_positive, transform)?;
        return Ok(vec![label_values(cx, label, &classes)?, cx.cast(both, DType::F32)?.into()]);
    }
    let scores = add_base(cx, scores, forest.targets)?;
    let label = super::ml::best(cx, scores)?;
    let scores = transform.apply(cx, scores)?;
    Ok(vec![label_values(cx, label, &classes)?, cx.cast(scores, DType::F32)?.into()])
}

/// Label and both scores of one score: a probability where all weights are positive, else a distance from 0.
fn two_classes(
    cx: &mut NodeCx<'_, '_>,
    score: ValueId,
    is_probability: bool,
    transform: PostTransform,
) -> Result<(ValueId, ValueId), Fault> {
    let threshold = cx.scalar(cx.dtype(score), if is_probability { 0.5 } else { 0.0 })?;
    let is_second = cx.compare(CompareFn::Gt, score, threshold)?;
    let label = cx.cast(is_second, DType::I64)?;
    let label = cx.squeeze(label, &[1])?;
    let (first, second) = match (is_probability, transform) {
        (true, _) => (cx.unary_with(UnaryFn::Affine, -1.0, 1.0, score)?, score),
        (false, PostTransform::Logistic) => {
            let opposite = cx.unary(UnaryFn::Neg, score)?;
            (cx.unary(UnaryFn::Sigmoid, opposite)?, cx.unary(UnaryFn::Sigmoid, score)?)
        }
        (false, _) => (cx.unary(UnaryFn::Neg, score)?, score),
    };
    Ok((label, cx.concat(&[first, second], 1)?))
}

//! ai.onnx.ml: support vector machines. How near rows are to support vectors is a product of matrices, and so are the scores
//! of all pairs of classes at once: the coefficients of a pair are a column that is 0 at the vectors of other classes.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Loop, Matmul, ReduceFn, UnaryFn};
use precast_tensor::{DType, Dim, Type};

use super::ml::{Labels, PostTransform, best, label_values, labels, rows_of};
use crate::import::{Applies, Fault, Import, NodeCx, StructureImport, Value};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] =
    &[Import { domain: "ai.onnx.ml", name: "SVMRegressor", since: 1, tier: 3, function: svm_regressor }];

/// Rows of operators whose labels may be strings.
pub(super) const STRUCTURES: &[StructureImport] = &[StructureImport {
    domain: "ai.onnx.ml",
    name: "SVMClassifier",
    since: 1,
    tier: 3,
    applies: Applies::Always,
    function: svm_classifier,
}];

/// How near a row is to each support vector, by the attribute `kernel_type`: [rows, vectors].
fn nearness(cx: &mut NodeCx<'_, '_>, x: ValueId, vectors: &[f64], features: usize) -> Result<ValueId, Fault> {
    let count = vectors.len() / features;
    let support = cx.float_tensor(DType::F32, vec![count, features], vectors)?;
    let parameters = cx.attributes().floats("kernel_params")?.unwrap_or_default();
    let parameter = |at: usize| parameters.get(at).copied().unwrap_or(0.0);
    let (gamma, offset, degree) = (parameter(0), parameter(1), parameter(2));
    let kind = cx.string("kernel_type", "LINEAR")?;
    if kind == "RBF" {
        let (x, support) = (cx.unsqueeze(x, &[1])?, cx.unsqueeze(support, &[0])?);
        let apart = cx.binary(BinaryFn::Sub, x, support)?;
        let squares = cx.reduce(ReduceFn::SumSq, apart, vec![2], false)?;
        let scaled = cx.binary_scalar(BinaryFn::Mul, squares, -gamma)?;
        return cx.unary(UnaryFn::Exp, scaled);
    }
    let product = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[x, support])?;
    match kind.as_str() {
        "LINEAR" => Ok(product),
        "POLY" => {
            let moved = cx.unary_with(UnaryFn::Affine, gamma, offset, product)?;
            cx.binary_scalar(BinaryFn::Pow, moved, degree)
        }
        "SIGMOID" => {
            let moved = cx.unary_with(UnaryFn::Affine, gamma, offset, product)?;
            cx.unary(UnaryFn::Tanh, moved)
        }
        other => Err(Fault::Invalid(format!("attribute 'kernel_type' is '{other}'"))),
    }
}

/// The rows of the input as f32, and how many features a row has.
fn rows_and_features(cx: &mut NodeCx<'_, '_>) -> Result<(ValueId, usize), Fault> {
    let x = rows_of(cx, 0)?;
    let x = cx.cast(x, DType::F32)?;
    let features = cx.number(&cx.dims(x)[1].clone(), "the number of features")?;
    Ok((x, features))
}

/// Attributes that say nothing where there are no support vectors.
fn read_unused_kernel(cx: &NodeCx<'_, '_>) -> Result<(), Fault> {
    cx.attributes().floats("kernel_params")?;
    cx.string("kernel_type", "LINEAR").map(drop)
}

fn svm_regressor(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let (x, features) = rows_and_features(cx)?;
    let transform = PostTransform::of_attribute(cx)?;
    let one_class = cx.flag("one_class", false)?;
    cx.int("n_supports", 0)?;
    let coefficients = cx.attributes().floats("coefficients")?.unwrap_or_default();
    let rho = cx.attributes().floats("rho")?.and_then(|rho| rho.first().copied()).unwrap_or(0.0);
    let vectors = cx.attributes().floats("support_vectors")?.filter(|vectors| !vectors.is_empty());
    let (near, width) = match &vectors {
        Some(vectors) if features > 0 && vectors.len() == coefficients.len() * features => {
            (nearness(cx, x, vectors, features)?, coefficients.len())
        }
        Some(vectors) => {
            let (numbers, count) = (vectors.len(), coefficients.len());
            return Err(Fault::Invalid(format!("{numbers} numbers of {count} support vectors of {features} features")));
        }
        None => {
            read_unused_kernel(cx)?;
            (x, features)
        }
    };
    if coefficients.len() != width {
        return Err(Fault::Invalid(format!("{} coefficients; {width} were expected", coefficients.len())));
    }
    let weights = cx.float_tensor(DType::F32, vec![width, 1], &coefficients)?;
    let scores = cx.matmul(near, weights)?;
    let scores = cx.binary_scalar(BinaryFn::Add, scores, rho)?;
    if !one_class {
        return Ok(vec![transform.apply(cx, scores)?]);
    }
    let (zero, one, minus) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, 1.0)?, cx.scalar(DType::F32, -1.0)?);
    let is_inside = cx.compare(CompareFn::Gt, scores, zero)?;
    let decided = cx.select(is_inside, one, minus)?;
    Ok(vec![cx.reshape(decided, vec![cx.dims(x)[0].clone(), Dim::ONE])?])
}

/// The numbers of a classifier, checked against each other.
struct Machine {
    classes: Labels,
    coefficients: Vec<f64>,
    rho: Vec<f64>,
    /// Slope and offset of the probability of each pair; empty where there are none.
    slopes: Vec<f64>,
    offsets: Vec<f64>,
    /// How many support vectors each class has; empty for a linear model.
    vectors_per_class: Vec<usize>,
    vectors: Vec<f64>,
}

impl Machine {
    fn read(cx: &NodeCx<'_, '_>) -> Result<Machine, Fault> {
        let floats = |name: &str| Ok::<_, Fault>(cx.attributes().floats(name)?.unwrap_or_default());
        let machine = Machine {
            classes: labels(cx, "classlabels_ints")?,
            coefficients: floats("coefficients")?,
            rho: floats("rho")?,
            slopes: floats("prob_a")?,
            offsets: floats("prob_b")?,
            vectors_per_class: cx.sizes("vectors_per_class")?.unwrap_or_default(),
            vectors: floats("support_vectors")?,
        };
        machine.check().map(|()| machine)
    }

    fn check(&self) -> Result<(), Fault> {
        let (classes, pairs) = (self.classes.len(), self.pairs().count());
        let expect = |what: &str, found: usize, expected: usize| match found == expected {
            true => Ok(()),
            false => Err(Fault::Invalid(format!("{found} {what}; {expected} were expected"))),
        };
        if classes < 2 {
            return Err(Fault::Unsupported(format!("a classifier of {classes} classes is not covered; 2 or more are")));
        }
        if self.is_linear() {
            return if self.rho.is_empty() { expect("numbers of rho", 0, 1) } else { Ok(()) };
        }
        expect("numbers of vectors_per_class", self.vectors_per_class.len(), classes)?;
        expect("numbers of rho", self.rho.len(), pairs)?;
        expect("coefficients", self.coefficients.len(), (classes - 1) * self.vector_count())?;
        if !self.slopes.is_empty() {
            expect("numbers of prob_a", self.slopes.len(), pairs)?;
        }
        expect("numbers of prob_b", self.offsets.len(), self.slopes.len())
    }

    fn is_linear(&self) -> bool {
        self.vector_count() == 0
    }

    fn vector_count(&self) -> usize {
        self.vectors_per_class.iter().sum()
    }

    /// Every pair of classes, the lower one first.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let classes = self.classes.len();
        (0..classes).flat_map(move |first| (first + 1..classes).map(move |second| (first, second)))
    }

    /// Coefficients as [vectors, pairs]. They are written as [classes - 1, vectors]: those of a vector of one class against
    /// another class stand in the row of that class, counted without the vector's own.
    fn pair_coefficients(&self) -> Vec<f64> {
        let (vectors, pairs) = (self.vector_count(), self.pairs().count());
        let mut columns = vec![0.0; vectors * pairs];
        let class_of = self.vectors_per_class.iter().enumerate().flat_map(|(class, &count)| vec![class; count]);
        for (vector, class) in class_of.enumerate() {
            for (pair, (first, second)) in self.pairs().enumerate() {
                let row = match class {
                    _ if class == first => second - 1,
                    _ if class == second => first,
                    _ => continue,
                };
                columns[vector * pairs + pair] = self.coefficients[row * vectors + vector];
            }
        }
        columns
    }
}

/// Labels and scores: of classes where the model is linear or has probabilities, else of pairs of classes.
fn svm_classifier(cx: &mut NodeCx<'_, '_>) -> Result<Vec<Value>, Fault> {
    let machine = Machine::read(cx)?;
    let transform = PostTransform::of_attribute(cx)?;
    let (x, features) = rows_and_features(cx)?;
    if machine.is_linear() {
        return linear_machine(cx, &machine, transform, x, features);
    }
    if features == 0 || machine.vectors.len() != machine.vector_count() * features {
        let (numbers, count) = (machine.vectors.len(), machine.vector_count());
        return Err(Fault::Invalid(format!("{numbers} numbers of {count} support vectors of {features} features")));
    }
    let near = nearness(cx, x, &machine.vectors, features)?;
    let pairs = machine.pairs().count();
    let coefficients =
        cx.float_tensor(DType::F32, vec![machine.vector_count(), pairs], &machine.pair_coefficients())?;
    let scores = cx.matmul(near, coefficients)?;
    let rho = cx.float_tensor(DType::F32, vec![1, pairs], &machine.rho)?;
    let scores = cx.binary(BinaryFn::Add, scores, rho)?;
    let place = most_votes(cx, &machine, scores)?;
    let label = label_values(cx, place, &machine.classes)?;
    let scores = if !machine.slopes.is_empty() {
        let probabilities = class_probabilities(cx, &machine, scores)?;
        transform.apply(cx, probabilities)?
    } else if pairs == 1 {
        both_ways(cx, transform, scores)?
    } else {
        transform.apply(cx, scores)?
    };
    Ok(vec![label, scores.into()])
}

/// A row of coefficients for each class. Of two classes the second is taken if the larger score says so, as onnxruntime has
/// it: above 0, or from one half on where no coefficient is negative.
fn linear_machine(
    cx: &mut NodeCx<'_, '_>,
    machine: &Machine,
    transform: PostTransform,
    x: ValueId,
    features: usize,
) -> Result<Vec<Value>, Fault> {
    read_unused_kernel(cx)?;
    let classes = machine.classes.len();
    if machine.coefficients.len() != classes * features {
        let (found, expected) = (machine.coefficients.len(), classes * features);
        return Err(Fault::Invalid(format!("{found} coefficients; {expected} were expected")));
    }
    let weights = cx.float_tensor(DType::F32, vec![classes, features], &machine.coefficients)?;
    let product = cx.add(Matmul { transpose_a: false, transpose_b: true }, &[x, weights])?;
    let scores = cx.binary_scalar(BinaryFn::Add, product, machine.rho[0])?;
    let mut place = best(cx, scores)?;
    if classes == 2 && machine.slopes.is_empty() {
        let is_positive = machine.coefficients.iter().all(|&coefficient| coefficient >= 0.0);
        let largest = cx.reduce(ReduceFn::Max, scores, vec![1], false)?;
        let (func, threshold) = if is_positive { (CompareFn::Ge, 0.5) } else { (CompareFn::Gt, 0.0) };
        let threshold = cx.scalar(DType::F32, threshold)?;
        let is_second = cx.compare(func, largest, threshold)?;
        let second = cx.int_scalar(1);
        place = cx.select(is_second, second, place)?;
    }
    let label = label_values(cx, place, &machine.classes)?;
    Ok(vec![label, transform.apply(cx, scores)?.into()])
}

/// The class that wins most of its pairs; of equal ones the first. A score above 0 is a win of the pair's first class.
fn most_votes(cx: &mut NodeCx<'_, '_>, machine: &Machine, scores: ValueId) -> Result<ValueId, Fault> {
    let (classes, pairs) = (machine.classes.len(), machine.pairs().count());
    let (mut gained, mut without) = (vec![0.0; pairs * classes], vec![0.0; classes]);
    for (pair, (first, second)) in machine.pairs().enumerate() {
        gained[pair * classes + first] = 1.0;
        gained[pair * classes + second] = -1.0;
        without[second] += 1.0;
    }
    let zero = cx.scalar(DType::F32, 0.0)?;
    let wins = cx.compare(CompareFn::Gt, scores, zero)?;
    let wins = cx.cast(wins, DType::F32)?;
    let gained = cx.float_tensor(DType::F32, vec![pairs, classes], &gained)?;
    let votes = cx.matmul(wins, gained)?;
    let without = cx.float_tensor(DType::F32, vec![1, classes], &without)?;
    let votes = cx.binary(BinaryFn::Add, votes, without)?;
    best(cx, votes)
}

/// The score of the only pair [rows, 1] as one for each class.
fn both_ways(cx: &mut NodeCx<'_, '_>, transform: PostTransform, scores: ValueId) -> Result<ValueId, Fault> {
    let opposite = match transform {
        PostTransform::None | PostTransform::Logistic => cx.unary(UnaryFn::Neg, scores)?,
        PostTransform::Softmax | PostTransform::SoftmaxZero => cx.unary_with(UnaryFn::Affine, -1.0, 1.0, scores)?,
        PostTransform::Probit => {
            return Err(Fault::Unsupported("post_transform=PROBIT of one pair of classes is not covered".to_string()));
        }
    };
    let both = cx.concat(&[opposite, scores], 1)?;
    if transform == PostTransform::Logistic { cx.unary(UnaryFn::Sigmoid, both) } else { Ok(both) }
}

/// How near a probability of a pair may come to 0 and 1.
const PROBABILITY_MIN: f64 = 1e-7;
/// Rounds in which the probabilities of classes are sought.
const ROUNDS_MAX: i64 = 100;
/// They are found when no class is further than this, over the number of classes, from where it should be.
const FOUND_WITHIN: f64 = 0.005;

/// Probabilities of classes [rows, classes] from those of pairs (Wu, Lin and Weng: Probability Estimates for Multi-class
/// Classification by Pairwise Coupling, second method; libsvm's form of it, whose early end is part of the result).
fn class_probabilities(cx: &mut NodeCx<'_, '_>, machine: &Machine, scores: ValueId) -> Result<ValueId, Fault> {
    let classes = machine.classes.len();
    let rows = cx.dims(scores)[0].clone();
    let between = pair_probabilities(cx, machine, scores)?;
    let quadratic = coupling(cx, between, classes)?;
    let first = cx.scalar(DType::F32, 1.0 / classes as f64)?;
    let first = cx.broadcast(first, vec![rows.clone(), Dim::from(classes)])?;
    let (trips, condition) = (cx.int_scalar(ROUNDS_MAX), cx.scalar(DType::Bool, 1.0)?);
    let parameters = [Type::scalar(DType::I64), Type::scalar(DType::Bool), cx.ty(first), cx.ty(quadratic)];
    let body = cx.own_body(&parameters, |cx, parameters| one_round(cx, parameters[2], parameters[3], classes))?;
    cx.add(Loop { body, carried: 1 }, &[trips, condition, first, quadratic])
}

/// r [rows, classes, classes]: r[i][j] is the probability of class i where only i and j are possible.
fn pair_probabilities(cx: &mut NodeCx<'_, '_>, machine: &Machine, scores: ValueId) -> Result<ValueId, Fault> {
    let (classes, pairs) = (machine.classes.len(), machine.pairs().count());
    let slopes = cx.float_tensor(DType::F32, vec![1, pairs], &machine.slopes)?;
    let offsets = cx.float_tensor(DType::F32, vec![1, pairs], &machine.offsets)?;
    let scaled = cx.binary(BinaryFn::Mul, scores, slopes)?;
    let moved = cx.binary(BinaryFn::Add, scaled, offsets)?;
    let opposite = cx.unary(UnaryFn::Neg, moved)?;
    let firsts = cx.unary(UnaryFn::Sigmoid, opposite)?;
    let firsts = cx.clamp(firsts, PROBABILITY_MIN, 1.0 - PROBABILITY_MIN)?;
    // Both halves of the matrix at once: p above the diagonal, 1 - p below it.
    let size = classes * classes;
    let (mut spread, mut below) = (vec![0.0; pairs * size], vec![0.0; size]);
    for (pair, (first, second)) in machine.pairs().enumerate() {
        spread[pair * size + first * classes + second] = 1.0;
        spread[pair * size + second * classes + first] = -1.0;
        below[second * classes + first] = 1.0;
    }
    let spread = cx.float_tensor(DType::F32, vec![pairs, size], &spread)?;
    let below = cx.float_tensor(DType::F32, vec![1, size], &below)?;
    let flat = cx.matmul(firsts, spread)?;
    let flat = cx.binary(BinaryFn::Add, flat, below)?;
    let rows = cx.dims(flat)[0].clone();
    cx.reshape(flat, vec![rows, Dim::from(classes), Dim::from(classes)])
}

/// The matrix whose quadratic form is least at the probabilities: sums of r[j][i] squared on its diagonal, -r[j][i] r[i][j]
/// beside it.
fn coupling(cx: &mut NodeCx<'_, '_>, between: ValueId, classes: usize) -> Result<ValueId, Fault> {
    let turned = cx.transpose(between, vec![0, 2, 1])?;
    let products = cx.binary(BinaryFn::Mul, between, turned)?;
    let squares = cx.reduce(ReduceFn::SumSq, between, vec![1], false)?;
    let squares = cx.unsqueeze(squares, &[2])?;
    let is_on_diagonal = |at: usize| f64::from(u8::from(at / classes == at % classes));
    let on_diagonal: Vec<f64> = (0..classes * classes).map(is_on_diagonal).collect();
    let on_diagonal = cx.float_tensor(DType::Bool, vec![classes, classes], &on_diagonal)?;
    let beside = cx.unary(UnaryFn::Neg, products)?;
    cx.select(on_diagonal, squares, beside)
}

/// One round: whether any row goes on, and the probabilities p after each class has been moved in turn. Rows that were there
/// already stay.
fn one_round(
    cx: &mut NodeCx<'_, '_>,
    before: ValueId,
    quadratic: ValueId,
    classes: usize,
) -> Result<Vec<ValueId>, Fault> {
    let column = cx.unsqueeze(before, &[2])?;
    let product = cx.matmul(quadratic, column)?;
    let mut gradient = cx.squeeze(product, &[2])?;
    let weighted = cx.binary(BinaryFn::Mul, before, gradient)?;
    let mut value = cx.reduce(ReduceFn::Sum, weighted, vec![1], true)?;
    let apart = cx.binary(BinaryFn::Sub, gradient, value)?;
    let apart = cx.unary(UnaryFn::Abs, apart)?;
    let apart = cx.reduce(ReduceFn::Max, apart, vec![1], true)?;
    let found_within = cx.scalar(DType::F32, FOUND_WITHIN / classes as f64)?;
    let goes_on = cx.compare(CompareFn::Ge, apart, found_within)?;
    let mut after = before;
    for class in 0..classes {
        (after, gradient, value) = move_class(cx, class, classes, quadratic, (after, gradient, value))?;
    }
    let after = cx.select(goes_on, after, before)?;
    let any = cx.reduce(ReduceFn::Any, goes_on, vec![0, 1], false)?;
    Ok(vec![any, after])
}

/// Moves one class to where the form is least along it, and scales all so that they sum to 1 again. The gradient and the
/// value of the form follow.
fn move_class(
    cx: &mut NodeCx<'_, '_>,
    class: usize,
    classes: usize,
    quadratic: ValueId,
    (p, gradient, value): (ValueId, ValueId, ValueId),
) -> Result<(ValueId, ValueId, ValueId), Fault> {
    let row = cx.slice_axis(quadratic, 1, Dim::from(class), Dim::ONE)?;
    let row = cx.squeeze(row, &[1])?;
    let own = cx.slice_axis(row, 1, Dim::from(class), Dim::ONE)?;
    let slope = cx.slice_axis(gradient, 1, Dim::from(class), Dim::ONE)?;
    let too_much = cx.binary(BinaryFn::Sub, value, slope)?;
    let step = cx.binary(BinaryFn::Div, too_much, own)?;
    let sum = cx.unary_with(UnaryFn::Affine, 1.0, 1.0, step)?;

    let only: Vec<f64> = (0..classes).map(|other| f64::from(u8::from(other == class))).collect();
    let only = cx.float_tensor(DType::F32, vec![1, classes], &only)?;
    let moved = cx.binary(BinaryFn::Mul, step, only)?;
    let moved = cx.binary(BinaryFn::Add, p, moved)?;
    let p = cx.binary(BinaryFn::Div, moved, sum)?;

    let twice = cx.unary_with(UnaryFn::Affine, 2.0, 0.0, slope)?;
    let along = cx.binary(BinaryFn::Mul, step, own)?;
    let along = cx.binary(BinaryFn::Add, along, twice)?;
    let along = cx.binary(BinaryFn::Mul, step, along)?;
    let raised = cx.binary(BinaryFn::Add, value, along)?;
    let raised = cx.binary(BinaryFn::Div, raised, sum)?;
    let value = cx.binary(BinaryFn::Div, raised, sum)?;

    let pull = cx.binary(BinaryFn::Mul, step, row)?;
    let pulled = cx.binary(BinaryFn::Add, gradient, pull)?;
    let gradient = cx.binary(BinaryFn::Div, pulled, sum)?;
    Ok((p, gradient, value))
}

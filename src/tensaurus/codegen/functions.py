import halide as hl
T={"float32":hl.Float(32),"float64":hl.Float(64),"int64":hl.Int(64),"int32":hl.Int(32),"bool":hl.Bool(),"uint8":hl.UInt(8),"int8":hl.Int(8)}
def halide_type(d): return T[d]
def constant(v,d):
    if d=="bool": return hl.cast(hl.Bool(),bool(v)) if False else hl.Expr(bool(v))
    if v==float("inf"): return T[d].max() if not d.startswith("float") else hl.cast(T[d],hl.f32(float("inf")))
    if v==float("-inf"): return T[d].min() if not d.startswith("float") else hl.cast(T[d],hl.f32(float("-inf")))
    if d=="float32": return hl.f32(float(v))
    if d=="float64": return hl.f64(float(v))
    return hl.cast(T[d],int(v))
def expression(fn,a,d):
    if fn.startswith("to_"): return hl.cast(T[fn[3:]],a[0])
    if fn=="neg": return -a[0]
    if fn=="abs": return hl.abs(a[0])
    two={"add":lambda x,y:x+y,"sub":lambda x,y:x-y,"mul":lambda x,y:x*y,"div":lambda x,y:x/y,"max":hl.max,"min":hl.min,"eq":lambda x,y:x==y,"lt":lambda x,y:x<y,"le":lambda x,y:x<=y,"and":lambda x,y:x&y,"or":lambda x,y:x|y,"pow":hl.pow}
    if fn in two: return two[fn](*a)
    if fn=="where": return hl.select(*a)
    one={"exp":hl.exp,"sqrt":hl.sqrt,"erf":hl.erf,"log":hl.log,"tanh":hl.tanh,"floor":hl.floor,"not":lambda x:~x}
    return one[fn](*a)

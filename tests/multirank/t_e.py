import time
from tests.support.ranks import *
from tests.multirank.programs import *
def f(start):
    t=time.time()
    r=joined(start)
    dt=time.time()-t
    x=r.comm.all_reduce(torch.ones(4)*(start.info.rank+1))
    g=r.comm.all_gather(torch.tensor([start.info.rank]))
    q=r.comm.gather(torch.tensor([start.info.rank]),root=0)
    b=r.comm.broadcast(torch.tensor([start.info.rank]),root=0)
    r.comm.barrier()
    r.ready()
    r.joined.liveness.phase('x')
    if start.info.rank: r.close()
    else: r.close()
    return [dt, x.tolist(), g.tolist(), None if q is None else q.tolist(), b.tolist(), r.comm.counts]
if __name__=='__main__':
    t=time.time()
    for n in (2,4,1,4):
        print(run_ranks(f,n), time.time()-t)
